// What happens to a batch once every row has its loss: ranks, then the mail, then the ticket goes back to 0.

// One batch's way home. Everything but `mail`'s target is device memory.
struct Finish {
    const float* keys;   // the losses that ranks are taken on, a row each
    int* count;          // null: no ranks, no mail
    float* rank_score;   // may be null
    const void* loss;    // columns of the mail, float or double; grad_norm and entropy may be null
    const void* grad_norm;
    const void* entropy;
    const i64* ids;      // may be null
    MailState* mail;     // null: no mail
    u32* tickets;        // word 0: blocks of this launch that are done
    u64 tag;
    float b0;
    int rows;
    u32 real_bytes;      // 4 or 8: what the columns hold
    u32 unused;
};

// True in every thread of the block that comes last. What the other blocks wrote before is visible to it then.
__device__ inline bool take_ticket(u32* ticket, u32 of, u8* shared) {
    u32* last = (u32*)shared;
    __syncthreads(); // every write of this block comes before its ticket, and nobody still reads shared memory
    if (thread_in_block() == 0) {
        fence_device();
        *last = atomicAdd(ticket, 1u) == of - 1;
        fence_device();
    }
    __syncthreads();
    return *last != 0;
}

__device__ inline float mail_value(const void* column, u32 real_bytes, u32 row) {
    if (real_bytes == 8) return (float)((volatile const double*)column)[row];
    return ((volatile const float*)column)[row];
}

// Copies a ranked batch into the next slot of the host's ring. The whole block takes part.
__device__ inline void send_mail(const Finish& f, u8* shared) {
    if (!f.mail) return;
    Claim* shared_claim = (Claim*)shared;
    u32 number = 0;
    __syncthreads(); // the counts are written, and nobody still reads shared memory
    if (thread_in_block() == 0) number = claim_slot(f.mail, (u32)f.rows, shared_claim);
    __syncthreads();
    u8* slot = (u8*)shared_claim->slot;
    if (!slot) return;
    u32 rows_max = shared_claim->rows_max;
    i64* ids = (i64*)(slot + SLOT_HEAD_BYTES);
    u8* columns = slot + SLOT_HEAD_BYTES + padded(8 * (u64)rows_max);
    u64 column_bytes = padded(4 * (u64)rows_max);
    float *loss = (float*)columns, *grad_norm = (float*)(columns + column_bytes), *entropy = (float*)(columns + 2 * column_bytes);
    int* count = (int*)(columns + 3 * column_bytes);
    for (u32 row = thread_in_block(); row < (u32)f.rows; row += block_threads()) {
        if (f.ids) ids[row] = f.ids[row];
        loss[row] = mail_value(f.loss, f.real_bytes, row);
        if (f.grad_norm) grad_norm[row] = mail_value(f.grad_norm, f.real_bytes, row);
        if (f.entropy) entropy[row] = mail_value(f.entropy, f.real_bytes, row);
        count[row] = *(volatile int*)(f.count + row);
        if (((volatile const u32*)f.keys)[row] == BAD_TARGET_KEY) atomicMin(&shared_claim->bad_row, row);
    }
    __syncthreads(); // every thread's part of the slot comes before the fence below
    if (thread_in_block() == 0) {
        SlotHead* head = (SlotHead*)slot;
        head->rows = (u32)f.rows;
        head->tag = f.tag;
        head->bad_row = shared_claim->bad_row;
        head->dropped = *(volatile u32*)&f.mail->dropped;
        head->columns = (f.ids ? HAS_IDS : 0) | (f.grad_norm ? HAS_GRAD_NORM : 0) | (f.entropy ? HAS_ENTROPY : 0);
        fence_system(); // the host may look as soon as it sees the word
        *(volatile u32*)&head->sequence = number + 1;
    }
}

// Whether the launch that wrote the keys ranks them. Else lossfeed_rank_* follows, or nobody asked.
__device__ inline bool ranks_small(const Finish& f) { return f.count && f.rows <= FUSED_RANK_ROWS; }

// Ranks a small batch and mails it, in the block that comes last.
__device__ inline void rank_small(const Finish& f, u8* shared) {
    float* tile = (float*)(shared + SHARED_HEAD_BYTES);
    u32 rows = (u32)f.rows, fours = (rows + 3) / 4;
    for (u32 row = thread_in_block(); row < 4 * fours; row += block_threads())
        tile[row] = row < rows ? read_key(f.keys, row) : Real<float>::nan();
    __syncthreads();
    for (u32 row = thread_in_block(); row < rows; row += block_threads()) {
        float key = tile[row];
        write_rank(row, key == key, count_below(tile, fours, key), f.b0, f.count, f.rank_score);
    }
    send_mail(f, shared);
}

// The end of a launch that wrote every key: ranks a small batch in the block that finishes last, and mails it.
__device__ inline void finish_small(const Finish& f, u8* shared) {
    if (!ranks_small(f) || !take_ticket(f.tickets, gridDim.x, shared)) return;
    rank_small(f, shared);
    if (thread_in_block() == 0) *f.tickets = 0; // for the next launch
}

// The end of a rank launch of any grid.
__device__ inline void finish_ranked(const Finish& f, u8* shared) {
    if (!f.mail) return;
    if (!take_ticket(f.tickets, gridDim.x, shared)) return;
    send_mail(f, shared);
    if (thread_in_block() == 0) *f.tickets = 0;
}
