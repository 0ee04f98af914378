// Scores on their way home: a ring of slots in mapped host memory that kernels write and one host thread reads.
//
// A kernel claims the next slot (compare-and-swap on `gate`), fills it, and behind one release fence writes the slot's
// sequence word: the claim's number plus 1. The host reads slots strictly in order and then raises its `consumed` word.
// A ring without a free slot takes nothing: the batch is counted as dropped. No argument of a launch changes from batch
// to batch, so a captured graph can be replayed.
//
// Closing takes the gate's open bit away in the same word that claims count in, and tells the host how many claims
// there were. From then on nobody claims, and when the last of those slots has been read nobody writes either: only
// then does the ring's memory go.

#define NO_ROW 0xffffffffu
#define SLOT_HEAD_BYTES 64
#define HAS_IDS 1u
#define HAS_GRAD_NORM 2u
#define HAS_ENTROPY 4u
// The gate's bit above the 32 bits of the count; the same bit of `closed` says that the count below it is the last.
#define MAIL_BIT (1ull << 32)

// Words of the host, in mapped memory that is never freed: a claim that is about to fail may still read them.
struct MailWords {
    u32 consumed; // slots the host has read so far (wraps); only the host writes it
    u32 unused;
    u64 closed;   // MAIL_BIT and the number of claims, once there will be no more; only the device writes it
};

// Device memory, one for each ring. Nothing but the first two and `seen` ever changes.
struct MailState {
    u64 gate;      // MAIL_BIT while open, and the slots claimed so far (32 bits, wraps)
    u32 dropped;   // batches that found no free slot (wraps)
    u32 slots;     // a power of two, so that the numbers may wrap
    u32 rows_max;
    u32 seen;      // what `consumed` was when somebody last asked: asking costs a round trip over the bus
    u64 ring;      // the first slot, as the device sees it
    MailWords* words;
};

// The first bytes of a slot, in host memory. Then ids (int64), loss, grad_norm, entropy (float) and count (int32), each
// of rows_max entries, each padded to 64 bytes.
struct SlotHead {
    u32 sequence; // written last
    u32 rows;
    u64 tag;
    u32 bad_row; // first row whose target names no class, or NO_ROW
    u32 dropped;
    u32 columns; // HAS_*
};

// ---- order between threads, and between device and host
// -----------------------------------------------------------------
//
// Acquire and release, not sequential consistency: these pair one writer with its readers, and the stronger fences wait
// for every write of the multiprocessor to be answered for. A fence of one thread behind a barrier also orders what the
// block's other threads wrote before the barrier: the barrier orders those writes before the fence, and release is
// cumulative (PTX ISA, "Memory Consistency Model": causality order).

#ifdef __CUDA_ARCH__
__device__ inline void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ inline void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ inline u32 load_acquire_device(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
__device__ inline u32 load_acquire_system(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
__device__ inline void store_release_device(u32* at, u32 value) {
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
#else
__device__ inline void fence_device() { __threadfence(); }
__device__ inline void fence_system() { __threadfence_system(); }
__device__ inline u32 load_acquire_device(const u32* at) {
    u32 value = *(volatile const u32*)at;
    __threadfence();
    return value;
}
__device__ inline u32 load_acquire_system(const u32* at) {
    u32 value = *(volatile const u32*)at;
    __threadfence_system();
    return value;
}
__device__ inline void store_release_device(u32* at, u32 value) {
    __threadfence();
    *(volatile u32*)at = value;
}
#endif

// ---- slots
// ----------------------------------------------------------------------------------------------------------------

__device__ inline u64 padded(u64 bytes) { return (bytes + 63) / 64 * 64; }

__device__ inline u64 slot_bytes(u32 rows_max) {
    return SLOT_HEAD_BYTES + padded(8 * (u64)rows_max) + 4 * padded(4 * (u64)rows_max);
}

// A slot that somebody may fill. The block shares it: everybody writes to the same one whatever becomes of the ring
// meanwhile.
struct Claim {
    u64 slot;     // 0: there is none
    u32 rows_max; // the slot's
    u32 bad_row;
};

// One thread: takes the next slot and returns its number, or counts a drop. Several streams may do so at the same time.
//
// `gate` and `consumed` are read one after the other, and the host may have read slots in between that others claimed
// meanwhile: the difference is negative then, which is room enough (the compare-and-swap finds out that the gate was
// old).
__device__ inline u32 claim_slot(MailState* mail, u32 rows, Claim* claim) {
    u32 slots = mail->slots, rows_max = mail->rows_max;
    u64 gate = *(volatile u64*)&mail->gate;
    // Acquire, here and from the host: its reading of the slot's last round comes before our writing.
    u32 seen = load_acquire_device(&mail->seen);
    claim->slot = 0;
    while (rows <= rows_max && gate & MAIL_BIT) {
        u32 number = (u32)gate;
        if ((int)(number - seen) >= (int)slots) {
            seen = load_acquire_system(&mail->words->consumed);
            if ((int)(number - seen) >= (int)slots) break;
            store_release_device(&mail->seen, seen); // release: whoever reads it has the host's reading behind it too
        }
        u64 found = atomicCAS(&mail->gate, gate, MAIL_BIT | (number + 1));
        if (found == gate) {
            claim->slot = mail->ring + (u64)(number & (slots - 1)) * slot_bytes(rows_max);
            claim->rows_max = rows_max;
            claim->bad_row = NO_ROW;
            return number;
        }
        gate = found;
    }
    atomicAdd(&mail->dropped, 1u);
    return 0;
}

struct MailArguments {
    MailState* mail;
};

// One thread: nobody claims a slot from here on, and the host learns how many were.
extern "C" __global__ void __launch_bounds__(32) lossfeed_mail_close(MailArguments a) {
    u64 gate = *(volatile u64*)&a.mail->gate;
    for (u64 found; (found = atomicCAS(&a.mail->gate, gate, gate & ~MAIL_BIT)) != gate;) gate = found;
    *(volatile u64*)&a.mail->words->closed = MAIL_BIT | (u32)gate;
}

// ---- targets that name no class
// ---------------------------------------------------------------------------------------------

// Where a stream's launches report such a row: device memory, one for each stream.
//
// Atomics of the device and of the host do not exclude each other over the bus, so neither side ever does a
// read-modify-write of what the other writes. The device keeps the worst row of the host's current generation to itself
// and stores it to `told`; the host reads `told`, and begins a new generation when it has spoken of it.
struct BadRows {
    u64 worst;             // generation << 32 | ~row: the largest is the first row of the latest generation
    u64* told;             // the host's copy of it, mapped; only the device writes it
    const u32* generation; // mapped; only the host writes it
};

__device__ inline void report_bad_row(BadRows* bad, u32 row) {
    u64 mine = (u64)*(volatile const u32*)bad->generation << 32 | ~row;
    if (atomicMax(&bad->worst, mine) >= mine) return; // told, or about to be
    // Others may store theirs at the same time: whoever stored last finds that nothing is worse.
    for (u64 now = mine, then = 0; now != then;) {
        then = now;
        __threadfence_system();
        *(volatile u64*)bad->told = now;
        __threadfence_system();
        now = *(volatile u64*)&bad->worst;
    }
}
