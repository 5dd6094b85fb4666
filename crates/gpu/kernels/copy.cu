// Copies a list of ranges between memories that the device can access: its own, and pinned host memory.
//
// Each warp takes units of the list in turn. A lane keeps four loads of 16 bytes in flight, so that 8 blocks of
// 1,024 threads fill a PCIe link. Units whose source and target have different alignments are copied in
// words of 4 bytes or in bytes.
//
// `tiffin_copy` accesses host memory. `tiffin_move` copies between ranges of the device, beside other kernels:
// a block is one warp with 32 registers (`compile.py` sets that), which fits beside the blocks of a matrix
// product that uses all but 1,024 registers of a multiprocessor. A larger block has to wait for their end.
//
// `make kernels` compiles this file to `copy.ptx`.

struct Unit {
    unsigned long long source;
    unsigned long long target;
    unsigned long long len;
};

static __device__ void copy_bytes(const char *source, char *target, unsigned long long len, unsigned lane) {
    for (unsigned long long at = lane; at < len; at += 32) {
        target[at] = source[at];
    }
}

template <typename Word>
static __device__ void copy_words(const char *source, char *target, unsigned long long len, unsigned lane) {
    const unsigned long long misaligned = (unsigned long long)target % sizeof(Word);
    unsigned long long head = misaligned ? sizeof(Word) - misaligned : 0;
    head = head < len ? head : len;
    copy_bytes(source, target, head, lane);
    const Word *from = (const Word *)(source + head);
    Word *to = (Word *)(target + head);
    const unsigned long long count = (len - head) / sizeof(Word);
    unsigned long long at = lane;
    for (; at + 96 < count; at += 128) {
        const Word a = from[at];
        const Word b = from[at + 32];
        const Word c = from[at + 64];
        const Word d = from[at + 96];
        to[at] = a;
        to[at + 32] = b;
        to[at + 64] = c;
        to[at + 96] = d;
    }
    for (; at < count; at += 32) {
        to[at] = from[at];
    }
    const unsigned long long done = head + count * sizeof(Word);
    copy_bytes(source + done, target + done, len - done, lane);
}

static __device__ __forceinline__ void copy_units(const Unit *units, unsigned count) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned warps = gridDim.x * (blockDim.x / 32);
    for (unsigned at = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; at < count; at += warps) {
        const Unit unit = units[at];
        const char *source = (const char *)unit.source;
        char *target = (char *)unit.target;
        const unsigned long long difference = unit.source ^ unit.target;
        if (difference % 16 == 0) {
            copy_words<uint4>(source, target, unit.len, lane);
        } else if (difference % 4 == 0) {
            copy_words<unsigned>(source, target, unit.len, lane);
        } else {
            copy_bytes(source, target, unit.len, lane);
        }
    }
}

extern "C" __global__ void __launch_bounds__(1024) tiffin_copy(const Unit *units, unsigned count) {
    copy_units(units, count);
}

extern "C" __global__ void __launch_bounds__(32) tiffin_move(const Unit *units, unsigned count) {
    copy_units(units, count);
}
