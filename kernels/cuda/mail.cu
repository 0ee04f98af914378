// Scores on their way home: a ring of slots in mapped host memory that kernels write and one host thread reads.
//
// A kernel claims the next slot (compare-and-swap on `head`), fills it, and after a system-wide fence writes the slot's sequence
// word: the claim's number plus 1. The host reads slots strictly in order and then raises its `consumed` word. A ring without a free
// slot takes nothing: the batch is counted as dropped. No argument of a launch changes from batch to batch, so a captured graph can
// be replayed.

#define NO_ROW 0xffffffffu
#define SLOT_HEAD_BYTES 64
#define HAS_IDS 1u
#define HAS_GRAD_NORM 2u
#define HAS_ENTROPY 4u

// Device memory, one for each ring.
struct MailState {
    u32 head;      // slots claimed so far (wraps)
    u32 dropped;   // batches that found no free slot (wraps)
    u32 slots;     // a power of two, so that the numbers may wrap
    u32 rows_max;
    u64 ring;      // the first slot, as the device sees it
    u64 consumed;  // the host's word: slots it has read so far (wraps)
};

// The first bytes of a slot, in host memory. Then ids (int64), loss, grad_norm, entropy (float) and count (int32), each of rows_max
// entries, each padded to 64 bytes.
struct SlotHead {
    u32 sequence; // written last
    u32 rows;
    u64 tag;
    u32 bad_row; // first row whose target names no class, or NO_ROW
    u32 dropped;
    u32 columns; // HAS_*
};

__device__ inline u64 padded(u64 bytes) { return (bytes + 63) / 64 * 64; }

__device__ inline u64 slot_bytes(u32 rows_max) {
    return SLOT_HEAD_BYTES + padded(8 * (u64)rows_max) + 4 * padded(4 * (u64)rows_max);
}

// One thread: takes the next slot, or counts a drop. Several streams may do so at the same time.
__device__ inline bool claim_slot(MailState* mail, u32 rows, u32* claimed) {
    volatile const u32* consumed = (volatile const u32*)mail->consumed;
    u32 head = *(volatile u32*)&mail->head;
    while (rows <= mail->rows_max && head - *consumed < mail->slots) {
        u32 seen = atomicCAS(&mail->head, head, head + 1);
        if (seen == head) {
            __threadfence_system(); // the host's reading of the slot's last round comes before our writing
            *claimed = head;
            return true;
        }
        head = seen;
    }
    atomicAdd(&mail->dropped, 1u);
    return false;
}
