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
        __threadfence();
        *last = atomicAdd(ticket, 1u) == of - 1;
        __threadfence();
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
    MailState* mail = f.mail;
    if (!mail) return;
    u32 *claimed = (u32*)shared, *accepted = claimed + 1, *bad_row = claimed + 2;
    __syncthreads(); // the counts are written, and nobody still reads shared memory
    if (thread_in_block() == 0) {
        *bad_row = NO_ROW;
        *accepted = claim_slot(mail, (u32)f.rows, claimed);
    }
    __syncthreads();
    if (!*accepted) return;
    u32 sequence = *claimed, rows_max = mail->rows_max;
    u8* slot = (u8*)mail->ring + (u64)(sequence & (mail->slots - 1)) * slot_bytes(rows_max);
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
        if (((volatile const u32*)f.keys)[row] == BAD_TARGET_KEY) atomicMin(bad_row, row);
    }
    __threadfence_system();
    __syncthreads();
    if (thread_in_block() == 0) {
        SlotHead* head = (SlotHead*)slot;
        head->rows = (u32)f.rows;
        head->tag = f.tag;
        head->bad_row = *bad_row;
        head->dropped = *(volatile u32*)&mail->dropped;
        head->columns = (f.ids ? HAS_IDS : 0) | (f.grad_norm ? HAS_GRAD_NORM : 0) | (f.entropy ? HAS_ENTROPY : 0);
        __threadfence_system(); // the host may look as soon as it sees the word
        *(volatile u32*)&head->sequence = sequence + 1;
    }
}

// Whether the launch that wrote the keys ranks them. Else lossfeed_rank_* follows, or nobody asked.
__device__ inline bool ranks_small(const Finish& f) { return f.count && f.rows <= FUSED_RANK_ROWS; }

// Ranks a small batch and mails it, in the block that comes last.
__device__ inline void rank_small(const Finish& f, u8* shared) {
    float* tile = (float*)(shared + SHARED_HEAD_BYTES);
    load_tile(tile, f.keys, 0u, (u32)f.rows);
    __syncthreads();
    for (u32 row = thread_in_block(); row < (u32)f.rows; row += block_threads()) {
        float key = tile[row];
        write_rank(row, key == key, count_below(tile, key), f.b0, f.count, f.rank_score);
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

// One block, up to SORT_ROWS rows: sorts the keys in shared memory and looks every row up.
extern "C" __global__ void __launch_bounds__(1024) lossfeed_rank_sort(Finish f) {
    LOSSFEED_SHARED(shared);
    u32* sorted = (u32*)(shared + SHARED_HEAD_BYTES);
    u32 rows = (u32)f.rows, size = 1;
    while (size < rows) size *= 2;
    for (u32 i = thread_in_block(); i < size; i += block_threads()) sorted[i] = i < rows ? ordered(read_key(f.keys, i)) : ORDERED_NAN;
    sort_shared(sorted, size);
    for (u32 row = thread_in_block(); row < rows; row += block_threads()) {
        u32 key = ordered(read_key(f.keys, row));
        write_rank(row, key != ORDERED_NAN, lower_bound(sorted, size, key), f.b0, f.count, f.rank_score);
    }
    finish_ranked(f, shared);
}

// All pairs: a row a thread, the keys pass by in tiles.
extern "C" __global__ void __launch_bounds__(256) lossfeed_rank_pairs(Finish f) {
    LOSSFEED_SHARED(shared);
    float* tile = (float*)(shared + SHARED_HEAD_BYTES);
    u32 rows = (u32)f.rows, row = blockIdx.x * blockDim.x + threadIdx.x;
    float key = row < rows ? read_key(f.keys, row) : Real<float>::nan();
    int below = 0;
    for (u32 first = 0; first < rows; first += TILE) {
        __syncthreads(); // the previous tile has been read
        load_tile(tile, f.keys, first, rows);
        __syncthreads();
        below += count_below(tile, key);
    }
    if (row < rows) write_rank(row, key == key, below, f.b0, f.count, f.rank_score);
    finish_ranked(f, shared);
}
