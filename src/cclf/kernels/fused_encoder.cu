// The four convolutions of the encoder in one kernel: a block keeps an image in shared memory from its
// pixels to its features. Three more kernels compute the gradients.
//
// 84 x 84 pixels of nine channels (packed frames, read at the corner of a crop) become 41 x 41,
// 39 x 39, 37 x 37 and 35 x 35 pixels of 32 channels. Each convolution has bias and ReLU; values are
// bfloat16, sums float32. A convolution is a sum of matrix products of 64 neighboring pixels, 16 terms
// and 32 outputs (wgmma.m64n32k16, by four warps). From the second convolution on, the 16 terms are 16
// channels under one tap. In the first they are eight channels under one tap and under the next one,
// or the ninth channel under eight taps, which packed frames store contiguously.
//
// In shared memory an image is stored as planes of eight channels, 16 bytes per pixel, row by row. The
// pixels under a tap are then those under the first tap at a constant offset. This holds across row
// ends as well: the two results there belong to no pixel and are not stored. In global memory, packed
// frames and activations kept for the backward pass are planes too, and bulk copies move them while all
// threads compute.
//
// Shared memory:   a: results of convolution 1, then of 3    b: rows of pixels, then results of 2
//                  w: first the weights of 1, then some of those of 3; after them the weights of 2,
//                  then the rest of 3. The weights of 4 follow the results of 3 in a.

typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef CCLF_PRIMITIVES
__device__ __forceinline__ u32 shared_start() {
  extern __shared__ __align__(128) unsigned char memory[];
  return (u32)__cvta_generic_to_shared(memory);
}
// Loads a 16 x 16 matrix into the registers of a warp, transposed. Lane l passes the address of row
// l % 16, of its first or its last eight columns.
__device__ __forceinline__ void load_matrix_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
// c += a b for one warp: 16 x 16 times 16 x 8.
__device__ __forceinline__ void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d = a b, or d += a b, for four warps. Both matrices are in shared memory, each given by a descriptor:
// the address of its first 16 bytes and the strides to the next eight terms and the next eight rows.
__device__ __forceinline__ void multiply_add(float (&d)[16], u64 a, u64 b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// After the next barrier, products and bulk copies see what this thread wrote to shared memory.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// An mbarrier, 8 bytes in shared memory. A phase completes when `threads` threads have arrived and all
// expected bytes have been copied; then the next phase begins. `phase` is the parity 0, 1, 0, ... of the
// phase to wait for.
__device__ __forceinline__ void init_mbarrier(u32 barrier, u32 threads) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(barrier),
      "r"(threads)
      : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives as well. The bytes may be copied before they are expected.
__device__ __forceinline__ void mbarrier_expect_bytes(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 phase) {
  u32 over;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(over)
        : "r"(barrier), "r"(phase)
        : "memory");
  } while (!over);
}
__device__ __forceinline__ void copy_in(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void copy_out(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
// Waits until the shared memory that this thread copies from may be overwritten.
__device__ __forceinline__ void wait_for_copies_out() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void store_4_bytes(u32 to, u32 value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_16_bytes(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void load_16_bytes(u32 (&r)[4], u32 from) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ u32 as_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ u32 to_bf16x2(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// Tells the compiler that all lanes hold the same value.
__device__ __forceinline__ int warp_uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
__device__ __forceinline__ u32 shuffle_xor(u32 value, int other) {
  return __shfl_xor_sync(0xffffffffu, value, other);
}
#define SYNC_THREADS() __syncthreads()
#endif

constexpr int THREADS = 512, GROUPS = THREADS / 128;  // groups of four warps
constexpr int CROP = 84, SIDE1 = 41, SIDE2 = 39, SIDE3 = 37, SIDE4 = 35;
constexpr int UNIT = 16;               // bytes of eight channels of a pixel
constexpr int PIXEL_BYTES = 4 * UNIT;  // 32 channels
constexpr int STEP_BYTES = 16 * 32 * 2;  // bytes of the weights of one product
constexpr int FIRST_STEPS = 6, FIRST_WEIGHT_BYTES = FIRST_STEPS * STEP_BYTES;
constexpr int STEPS = 18, WEIGHT_BYTES = STEPS * STEP_BYTES;  // convolutions 2 to 4
constexpr int FRONT_STEPS = 8, FRONT_BYTES = FRONT_STEPS * STEP_BYTES;  // loaded early

// COUNT mbarriers with THREADS_TO_ARRIVE threads each, and the phase of each.
template <int COUNT, int THREADS_TO_ARRIVE = 1> struct Mbarriers {
  static constexpr int BYTES = 64;
  static_assert(8 * COUNT <= BYTES, "the mbarriers fit");
  u32 first, phases = 0;
  __device__ __forceinline__ u32 at(int i) const { return first + 8 * i; }
  __device__ __forceinline__ void init(int thread) const {
    if (thread < COUNT) init_mbarrier(at(thread), THREADS_TO_ARRIVE);
    fence_async_proxy();
    SYNC_THREADS();
  }
  __device__ __forceinline__ void wait(int i) {
    mbarrier_wait(at(i), phases >> i & 1);
    phases ^= 1u << i;
  }
};

// The descriptor of a matrix in shared memory: its address, and the strides to the next eight terms and
// the next eight rows, in units.
__device__ __forceinline__ u64 matrix(u32 position, u32 next_terms) {
  constexpr u64 NEXT_ROWS = 8;
  return (u64)(position / UNIT) | (u64)(next_terms / UNIT) << 16 | NEXT_ROWS << 32;
}

// A crop of packed frames [frame][odd column][second eight numbers][row][half the columns][8]. The first
// eight numbers of a pixel are its first eight channels. The second eight are the ninth channel at this
// pixel and under the next seven taps of a 3 x 3 filter that begins at this pixel.
//
// The constructor only loads values, so that no thread waits for them before the first call of `line`.
struct Crop {
  const unsigned char* images;
  u64 frame;
  int y, x, height, columns;
  __device__ __forceinline__ Crop(const unsigned char* images, const long long* sample,
                                  const long long* origins, int n, int height, int columns)
      : images(images), frame(sample[n]), y((int)origins[2 * n]), x((int)origins[2 * n + 1]),
        height(height), columns(columns) {}
  // The pixels of one row in the even or the odd columns of the crop, which are contiguous.
  __device__ __forceinline__ const unsigned char* line(int row, int column_odd, int eight) const {
    int column = x + column_odd, plane = 2 * (column & 1) + eight;
    return images + (((4 * frame + plane) * height + y + row) * columns + (column >> 1)) * UNIT;
  }
};

// The pixels for ROWS rows of results of convolution 1, as lines of HALF pixels. Even and odd rows and
// columns are separate planes, because the convolution has stride 2. Of the ninth channel only even rows
// and columns are needed: filters begin there, and the last tap of a filter is the first tap of the
// filter one row and one column further.
constexpr int HALF = CROP / 2;
template <int ROWS> struct Band {
  enum { EVEN_EVEN, EVEN_ODD, NINTH, ODD_ODD, ODD_EVEN, PLANES };  // row, column
  static __device__ constexpr int lines(int rows) { return PLANES * rows + 3; }
  static constexpr int BYTES = lines(ROWS) * HALF * UNIT;
  // There is one odd row less.
  static __device__ constexpr int line_of(int plane) {
    return plane * (ROWS + 1) - (plane > ODD_ODD ? 1 : 0);
  }
  // Offsets, in units, of the groups of eight terms of a result. Two groups are the 16 terms of a
  // product; the first must have the smaller offset.
  static __device__ constexpr int terms(int number) {
    int dy = number / 3, dx = number % 3, offset = HALF + 1;
    if (number == 9) return line_of(NINTH) * HALF;
    if (number == 10) return line_of(NINTH) * HALF + offset;  // its first term is the last tap
    if (number == 11) return line_of(ODD_ODD) * HALF;          // any pixels: their weights are zero
    int plane = dy % 2 ? (dx % 2 ? ODD_ODD : ODD_EVEN) : (dx % 2 ? EVEN_ODD : EVEN_EVEN);
    return line_of(plane) * HALF + dy / 2 * HALF + dx / 2;
  }
  static __device__ constexpr int to_second(int step) {
    return terms(2 * step + 1) - terms(2 * step);
  }
  static __device__ constexpr bool in_order() {
    for (int step = 0; step < FIRST_STEPS; ++step)
      if (to_second(step) <= 0) return false;
    return true;
  }
  // Copies the pixels for `rows` rows of results from row `first` on. Each of 128 threads copies at most
  // one line.
  static_assert(lines(ROWS) <= 128, "one line per thread");
  static __device__ __forceinline__ void copy(const Crop& crop, int first, int rows, u32 to,
                                              u32 barrier, int worker) {
    if (worker >= lines(rows)) return;
    int pair = worker / PLANES, plane = worker % PLANES, row_odd = plane >= ODD_ODD;
    int column_odd = plane == EVEN_ODD || plane == ODD_ODD;
    copy_in(to + (line_of(plane) + pair) * HALF * UNIT,
            crop.line(2 * (first + pair) + row_odd, column_odd, plane == NINTH), HALF * UNIT, barrier);
  }
};

// Convolution 1 is computed in bands of rows. Each group of four warps fills one buffer with pixels.
constexpr int BAND_ROWS = 6, BANDS = 7;
using Pixels = Band<BAND_ROWS>;
static_assert(Pixels::in_order(), "the first terms of a product have the smaller offset");
static_assert(BAND_ROWS * HALF <= 64 * GROUPS, "one product per group covers a band");
static_assert(SIDE1 > BAND_ROWS * (BANDS - 1) && SIDE1 <= BAND_ROWS * BANDS, "the bands cover all rows");
static_assert(GROUPS < BANDS && BANDS <= 2 * GROUPS, "every buffer is filled once or twice");
__device__ __forceinline__ int band_rows(int band) {
  return band < BANDS - 1 ? BAND_ROWS : SIDE1 - BAND_ROWS * (BANDS - 1);
}
constexpr int A_START = 0, A_BYTES = SIDE1 * SIDE1 * PIXEL_BYTES;
constexpr int B_START = A_BYTES, B_BYTES = SIDE2 * SIDE2 * PIXEL_BYTES;
constexpr int W_START = B_START + B_BYTES, BARRIERS_START = W_START + FRONT_BYTES + WEIGHT_BYTES;
constexpr int LAST_WEIGHTS = SIDE3 * SIDE3 * PIXEL_BYTES;  // in a, after the results of 3
static_assert(GROUPS * Pixels::BYTES <= B_BYTES, "the pixels fit in b");
static_assert(FIRST_WEIGHT_BYTES <= FRONT_BYTES, "the first weights fit");
static_assert(LAST_WEIGHTS + WEIGHT_BYTES <= A_BYTES, "the last weights fit in a");
static_assert(BARRIERS_START + 2 * Mbarriers<1>::BYTES <= 232448, "more than a block can have");

// A lane holds two outputs of each group of eight of one pixel, `value`.
// Stores results in shared memory, as planes.
template <int SIDE_> struct Planes {
  static constexpr int SIDE = SIDE_;
  u32 to;
  __device__ __forceinline__ void store(int row, int column, const u32 (&value)[4], int lane) const {
    if (row < SIDE && column < SIDE)
#pragma unroll
      for (int n = 0; n < 4; ++n)
        store_4_bytes(to + ((n * SIDE + row) * SIDE + column) * UNIT + 4 * (lane & 3), value[n]);
  }
};
// Transposes outputs within four lanes. Before, each lane holds two outputs of each of four groups of
// eight; afterwards it holds one whole group.
__device__ __forceinline__ void swap(u32& first, u32& second, bool above, int other) {
  u32 got = shuffle_xor(above ? first : second, other);  // the lower lane passes its second value
  first = above ? got : first;
  second = above ? second : got;
}
__device__ __forceinline__ void transpose_in_quad(u32 (&value)[4], int pair) {
  swap(value[0], value[1], pair & 1, 1);
  swap(value[2], value[3], pair & 1, 1);
  swap(value[0], value[2], pair & 2, 2);
  swap(value[1], value[3], pair & 2, 2);
}
// Stores results in global memory, pixel by pixel. Rows end with an additional pixel of zeros.
struct Features {
  static constexpr int SIDE = SIDE4;
  uint4* out;
  __device__ __forceinline__ void store(int row, int column, u32 (&value)[4], int lane) const {
    transpose_in_quad(value, lane & 3);
    if (row >= SIDE || column >= SIDE) return;
    uint4* pixel = out + (row * (SIDE + 1) + column) * 4 + (lane & 3);
    *pixel = make_uint4(value[0], value[1], value[2], value[3]);
    if (column == SIDE - 1) pixel[4] = make_uint4(0, 0, 0, 0);
  }
};

// Adds the bias to 64 neighboring results from position `begin` on, applies ReLU and stores them. Rows
// have WIDTH positions.
template <int WIDTH, class Results>
__device__ __forceinline__ void add_bias_and_relu(const float (&sum)[16], const float (&bias)[8],
                                                  int begin, int first_row, int rows,
                                                  const Results& results, int warp, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int position = begin + (warp & 3) * 16 + 8 * half + (lane >> 2), row = position / WIDTH;
    u32 value[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      value[n] = to_bf16x2(fmaxf(sum[4 * n + 2 * half] + bias[2 * n], 0.0f),
                         fmaxf(sum[4 * n + 2 * half + 1] + bias[2 * n + 1], 0.0f));
    results.store(row < rows ? first_row + row : Results::SIDE, position % WIDTH, value, lane);
  }
}
__device__ __forceinline__ void load_bias(float (&values)[8], const float* bias, int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = bias[i / 2 * 8 + 2 * (lane & 3) + i % 2];
}

// Convolution 1: the 64 sums of this group in one band, from the pixels at `from`.
__device__ __forceinline__ void first_products(float (&sum)[16], u32 from, u32 weights, int warp) {
  u64 factors = matrix(weights, STEP_BYTES / 2);
  u32 pixels = from + (warp >> 2) * 64 * UNIT;
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < FIRST_STEPS; ++step)
    multiply_add(sum, matrix(pixels + Pixels::terms(2 * step) * UNIT, Pixels::to_second(step) * UNIT),
                 factors + step * (STEP_BYTES / UNIT), step > 0);
  wgmma_wait();
}

// A 3 x 3 convolution over 32 channels of SIDE x SIDE pixels in planes: adds the steps FIRST to LAST - 1
// to 64 sums, which start at the pixel at `from`.
template <int SIDE, int FIRST, int LAST>
__device__ __forceinline__ void multiply_steps(float (&sum)[16], u32 from, u32 weights) {
  constexpr int PLANE = SIDE * SIDE;
  u64 factors = matrix(weights, STEP_BYTES / 2), pixels = matrix(from, PLANE * UNIT);
  wgmma_fence();
#pragma unroll
  for (int step = FIRST; step < LAST; ++step) {
    int tap = step / 2, part = step % 2;
    int offset = 2 * part * PLANE + tap / 3 * SIDE + tap % 3;
    multiply_add(sum, pixels + offset, factors + step * (STEP_BYTES / UNIT), step > 0);
  }
  wgmma_wait();
}

// The convolution of the pixels at `from`: calls `before(begin)` for every 64 of COUNT neighboring
// results, computes them and calls `after(sum, begin)`. The weights of the first LOADED_STEPS steps are
// loaded already, the others after `wait()`.
struct NoOp {
  __device__ __forceinline__ void operator()() const {}
  __device__ __forceinline__ void operator()(int) const {}
};
template <int SIDE, int COUNT, int LOADED_STEPS, class Wait, class Before, class After>
__device__ __forceinline__ void convolve(u32 from, u32 weights, int warp, const Wait& wait,
                                         const Before& before, const After& after) {
  for (int tile = warp >> 2; tile * 64 < COUNT; tile += GROUPS) {
    u32 pixels = from + tile * 64 * UNIT;
    float sum[16];
    before(tile * 64);
    if (LOADED_STEPS < STEPS && tile < GROUPS) {
      multiply_steps<SIDE, 0, LOADED_STEPS>(sum, pixels, weights);
      wait();
      multiply_steps<SIDE, LOADED_STEPS, STEPS>(sum, pixels, weights);
    } else {
      multiply_steps<SIDE, 0, STEPS>(sum, pixels, weights);
    }
    after(sum, tile * 64);
  }
}

// The forward pass of convolution 2, 3 or 4.
template <int SIDE, int LOADED_STEPS, class Results, class Wait, class Before>
__device__ __forceinline__ void convolve_and_relu(u32 from, u32 weights, const float* all_bias,
                                                 const Results& results, int warp, int lane,
                                                 const Wait& wait, const Before& before) {
  float bias[8];
  load_bias(bias, all_bias, lane);
  convolve<SIDE, (SIDE - 2) * SIDE, LOADED_STEPS>(
      from, weights, warp, wait, before, [&](const float(&sum)[16], int begin) {
        add_bias_and_relu<SIDE>(sum, bias, begin, 0, SIDE - 2, results, warp, lane);
      });
}

// Weights are in the layout of `multiply_add`, in steps of 16 terms, each [2][4][8 outputs][8 terms]:
// `first` has 6 steps, `later` 3 x 18. `bias`: [4][32]. KEEP: the planes of the results of convolutions 1
// to 3 are copied to `kept_1` to `kept_3`.
template <bool KEEP>
__device__ __forceinline__ void encode(const unsigned char* images, const long long* sample,
                                       const long long* origins, const unsigned char* first,
                                       const unsigned char* later, const float* bias,
                                       uint4* features, unsigned char* kept_1, unsigned char* kept_2,
                                       unsigned char* kept_3, int count, int height, int columns) {
  u32 start = shared_start(), a = start + A_START, b = start + B_START, w = start + W_START;
  int thread = threadIdx.x, warp = warp_uniform(thread / 32), lane = thread % 32;
  int group = warp >> 2;
  int worker = lane * 4 + (warp & 3);  // in the group; consecutive workers are in different warps
  enum { FRONT = GROUPS, BACK, LAST, ALL };  // after those of the pixel buffers
  Mbarriers<ALL> barriers{start + BARRIERS_START};
  Mbarriers<BANDS - GROUPS, THREADS / 32> used{start + BARRIERS_START + barriers.BYTES};
  barriers.init(thread);
  used.init(thread);

  // Each group fills its own buffer. Starting a copy takes a warp 60 cycles.
  auto copy_band = [&](const Crop& crop, int band) {
    u32 barrier = barriers.at(group);
    int rows = band_rows(band);
    if (worker == 0) mbarrier_expect_bytes(barrier, Pixels::lines(rows) * HALF * UNIT);
    Pixels::copy(crop, BAND_ROWS * band, rows, b + group * Pixels::BYTES, barrier, worker);
  };
  // One thread copies the weights.
  auto copy_weights = [&](u32 to, const unsigned char* from, int steps, int barrier) {
    if (thread > 0) return;
    mbarrier_expect_bytes(barriers.at(barrier), steps * STEP_BYTES);
    copy_in(to, from, steps * STEP_BYTES, barriers.at(barrier));
  };
  u32 w_back = w + FRONT_BYTES;
  auto copy_first_two = [&] {
    copy_weights(w, first, FIRST_STEPS, FRONT);
    copy_weights(w_back, later, STEPS, BACK);
  };
  const unsigned char* third = later + WEIGHT_BYTES;
  auto crop_of = [&](int n) {
    return Crop(images, sample, origins, n < count ? n : 0, height, columns);
  };
  auto sync_shared_memory = [&] {
    fence_async_proxy();
    SYNC_THREADS();
  };
  auto keep = [&](unsigned char* to, u32 from, int side, int n) {
    u32 bytes = side * side * PIXEL_BYTES;
    if (KEEP && thread == 0) copy_out(to + (u64)n * bytes, from, bytes);
  };
  auto wait_until_kept = [&] {
    if (KEEP && thread == 0) wait_for_copies_out();
  };

  if ((int)blockIdx.x >= count) return;
  NoOp no_op;
  Crop next = crop_of(blockIdx.x);
  copy_first_two();
  copy_band(next, group);
  for (int n = blockIdx.x; n < count; n += gridDim.x) {
    bool another = n + (int)gridDim.x < count;
    Crop crop = next;
    next = crop_of(n + gridDim.x);
    float first_bias[8];
    load_bias(first_bias, bias, lane);
    barriers.wait(FRONT);
#pragma unroll 1
    for (int band = 0; band < BANDS; ++band) {
      int buffer = band % GROUPS;
      bool refill = band + GROUPS < BANDS;
      float sum[16];
      barriers.wait(buffer);
      first_products(sum, b + buffer * Pixels::BYTES, w, warp);
      if (refill && lane == 0) mbarrier_arrive(used.at(buffer));
      add_bias_and_relu<HALF>(sum, first_bias, group * 64, BAND_ROWS * band, band_rows(band),
                              Planes<SIDE1>{a}, warp, lane);
      if (refill && buffer == group) {
        used.wait(buffer);
        copy_band(crop, band + GROUPS);
      }
    }
    sync_shared_memory();
    copy_weights(w, third, FRONT_STEPS, FRONT);
    keep(kept_1, a, SIDE1, n);
    barriers.wait(BACK);
    convolve_and_relu<SIDE1, STEPS>(a, w_back, bias + 32, Planes<SIDE2>{b}, warp, lane, no_op,
                                   no_op);
    wait_until_kept();
    sync_shared_memory();
    copy_weights(w_back, third + FRONT_BYTES, STEPS - FRONT_STEPS, BACK);
    copy_weights(a + LAST_WEIGHTS, later + 2 * WEIGHT_BYTES, STEPS, LAST);
    keep(kept_2, b, SIDE2, n);
    barriers.wait(FRONT);
    convolve_and_relu<SIDE2, FRONT_STEPS>(b, w, bias + 64, Planes<SIDE3>{a}, warp, lane,
                                         [&] { barriers.wait(BACK); }, no_op);
    wait_until_kept();
    sync_shared_memory();
    keep(kept_3, a, SIDE3, n);
    if (another) copy_first_two();
    barriers.wait(LAST);
    Features results{features + (u64)n * (SIDE4 * (SIDE4 + 1) * 4)};
    // The groups start the copies for the next image one after another, while the other three compute.
    auto start_copies = [&](int begin) {
      if (another && begin / (64 * GROUPS) == group) copy_band(next, group);
    };
    convolve_and_relu<SIDE3, STEPS>(a, a + LAST_WEIGHTS, bias + 96, results, warp, lane, no_op,
                                   start_copies);
    wait_until_kept();
    SYNC_THREADS();
  }
}

#define ENCODER(name, KEEP)                                                                        \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                         \
      name(const unsigned char* images, const long long* sample, const long long* origins,         \
           const unsigned char* first, const unsigned char* later, const float* bias,              \
           uint4* features, unsigned char* kept_1, unsigned char* kept_2, unsigned char* kept_3,   \
           int count, int height, int columns) {                                                   \
    encode<KEEP>(images, sample, origins, first, later, bias, features, kept_1, kept_2, kept_3,    \
                 count, height, columns);                                                          \
  }
ENCODER(encode_frozen, false)
ENCODER(encode_and_keep, true)

// The backward pass through the last three convolutions: a block keeps the gradient of an image in shared
// memory from the features to the results of convolution 1, masks it at every ReLU and sums it for the
// biases.
//
// The gradient of the SIDE - 2 rows and columns of a result is stored in rows of SIDE pixels, padded with
// zeros: two columns at the end, and two rows above and below, which consecutive planes share. The
// gradient of the SIDE x SIDE inputs is then a convolution of it with the flipped weights.
//
// Shared memory:   x: gradient of 4, then of 2    y: gradient of the features, then of 3    w: weights

// Positions of a plane that the weight gradients read at a time: a fifth, in blocks of 16.
constexpr int CHUNKS = 5;
__device__ constexpr int chunk_of(int side) {
  return ((side - 2) * side + 16 * CHUNKS - 1) / (16 * CHUNKS) * 16;
}

template <int SIDE> struct Padded {
  static constexpr int PLANE = SIDE * SIDE, BYTES = (2 + 4 * PLANE + 2 * SIDE) * UNIT;
  static constexpr int STORED = CHUNKS * chunk_of(SIDE);  // of a plane in global memory
  static_assert(STORED <= SIDE * SIDE, "zeros follow up to the next plane");
  static __device__ __forceinline__ u32 position(int group, int row, int column) {
    return (u32)(2 + group * PLANE + (row + 2) * SIDE + column) * UNIT;
  }
  u32 at;
  __device__ __forceinline__ void store(int row, int column, int group, const u32 (&value)[4]) const {
    store_16_bytes(at + position(group, row, column), value[0], value[1], value[2], value[3]);
  }
  // Writes the padding.
  __device__ __forceinline__ void clear(int thread) const {
    constexpr int ROWS = 4 * SIDE + 2;  // of all planes and the padding below the last
    for (int i = thread; i < ROWS * 2; i += THREADS) {
      int row = i >> 1, column = SIDE - 2 + (i & 1);
      store_16_bytes(at + (2 + row * SIDE + column) * UNIT, 0, 0, 0, 0);
    }
    for (int i = thread; i < 5 * 2 * SIDE; i += THREADS) {
      int group = i / (2 * SIDE), position = i % (2 * SIDE);
      store_16_bytes(at + (2 + group * PLANE + position) * UNIT, 0, 0, 0, 0);
    }
    if (thread < 2) store_16_bytes(at + thread * UNIT, 0, 0, 0, 0);
  }
  // Copies the rows of image n, with the padding at their ends, to global memory.
  __device__ __forceinline__ void copy_to_global(unsigned char* out, int n, int thread) const {
    u32 bytes = STORED * UNIT;
    if (thread < 4) copy_out(out + ((u64)n * 4 + thread) * bytes, at + position(thread, 0, 0), bytes);
  }
};
constexpr int X_BYTES = Padded<SIDE1>::BYTES, Y_BYTES = Padded<SIDE2>::BYTES;
constexpr int X_START = 0, Y_START = X_BYTES, BACK_WEIGHTS = X_BYTES + Y_BYTES;
constexpr int BACK_BARRIERS = BACK_WEIGHTS + WEIGHT_BYTES;
constexpr int FEATURE_UNITS = SIDE4 * (SIDE4 + 1) * 4;
static_assert(Padded<SIDE3>::BYTES <= X_BYTES && FEATURE_UNITS * UNIT <= Y_BYTES, "all gradients fit");

// The gradient of the results of convolution 1 in global memory: rows of HALF positions, the last of them
// zero, then zeros up to a multiple of 16.
struct FirstGradient {
  static constexpr int STORED = (SIDE1 * HALF + 15) / 16 * 16, PADDING = STORED - SIDE1 * HALF;
  uint4* out;
  __device__ __forceinline__ void store(int row, int column, int group, const u32 (&value)[4]) const {
    uint4* pixel = out + group * STORED + row * HALF + column;
    *pixel = make_uint4(value[0], value[1], value[2], value[3]);
    if (column == SIDE1 - 1) pixel[1] = make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void clear_padding(int thread) const {
    if (thread < 4 * PADDING)
      out[thread / PADDING * STORED + SIDE1 * HALF + thread % PADDING] = make_uint4(0, 0, 0, 0);
  }
};

// The sums of a block: for the first weight, the later weights and the biases.
constexpr int FIRST_NUMBERS = FIRST_STEPS * 16 * 32, LATER_NUMBERS = 9 * 32 * 32;
constexpr int BIAS_NUMBERS = FIRST_NUMBERS + 3 * LATER_NUMBERS;  // before the sums of the biases
constexpr int ALL_NUMBERS = BIAS_NUMBERS + 4 * 32;
__device__ __forceinline__ float* sums_of_block(float* parts) {
  return parts + (u64)blockIdx.x * ALL_NUMBERS;
}

// 0xffff where a bfloat16 of `values` is positive. None is negative.
__device__ __forceinline__ u32 positive_mask(u32 values) {
  return (((values & 0x7fff7fffu) + 0x7fff7fffu & 0x80008000u) >> 15) * 0xffffu;
}
__device__ __forceinline__ void mask(u32 (&value)[4], const uint4& results, float (&total)[8]) {
  u32 activation[4] = {results.x, results.y, results.z, results.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    value[i] &= positive_mask(activation[i]);
    total[2 * i] += as_float(value[i] << 16);
    total[2 * i + 1] += as_float(value[i] & 0xffff0000u);
  }
}
// Lanes with a distance of 4 hold sums of the same eight outputs. After adding them, each lane returns
// one output.
__device__ __forceinline__ int output_of(int lane) { return 8 * (lane & 3) + (lane >> 2); }
__device__ __forceinline__ float add_lanes(float (&total)[8], int lane) {
  float mine = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int other = 4; other < 32; other *= 2)
      total[i] += as_float(shuffle_xor(as_bits(total[i]), other));
    mine = lane >> 2 == i ? total[i] : mine;
  }
  return mine;
}

// The backward pass of one convolution: from the gradient of its result at `from` to the gradient of its
// SIDE x SIDE inputs, masked where these, `results`, are zero, and stored in `to`. Returns the sum of the
// masked gradient over the pixels.
template <int SIDE, class To>
__device__ __forceinline__ float backward(u32 from, u32 weights, const uint4* results, int warp,
                                          int lane, const To& to) {
  float total[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  int group = lane & 3;
  uint4 activation[2];
  auto position_of = [&](int begin, int half) {
    return begin + (warp & 3) * 16 + 8 * half + (lane >> 2);
  };
  convolve<SIDE, SIDE * SIDE, STEPS>(
      from, weights, warp, NoOp(),
      [&](int begin) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int position = position_of(begin, half);
          if (position < SIDE * SIDE) activation[half] = results[group * SIDE * SIDE + position];
        }
      },
      [&](const float(&sum)[16], int begin) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int position = position_of(begin, half);
          u32 value[4];
#pragma unroll
          for (int n = 0; n < 4; ++n)
            value[n] = to_bf16x2(sum[4 * n + 2 * half], sum[4 * n + 2 * half + 1]);
          transpose_in_quad(value, group);
          if (position >= SIDE * SIDE) continue;
          mask(value, activation[half], total);
          to.store(position / SIDE, position % SIDE, group, value);
        }
      });
  return add_lanes(total, lane);
}

// Masks the gradient of the features at `from` where they are zero. Returns its sum over the pixels.
__device__ __forceinline__ float mask_features(u32 from, const uint4* features,
                                              const Padded<SIDE3>& to, int thread) {
  constexpr int AT_ONCE = 5;
  float total[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (int begin = thread; begin < FEATURE_UNITS; begin += AT_ONCE * THREADS) {
    uint4 activation[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j)
      if (begin + j * THREADS < FEATURE_UNITS) activation[j] = features[begin + j * THREADS];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      int i = begin + j * THREADS, row = (i >> 2) / (SIDE4 + 1), column = (i >> 2) % (SIDE4 + 1);
      if (i >= FEATURE_UNITS || column == SIDE4) continue;
      u32 value[4];
      load_16_bytes(value, from + i * UNIT);
      mask(value, activation[j], total);
      to.store(row, column, i & 3, value);
    }
  }
  return add_lanes(total, thread % 32);
}

// `gradient` and `results_4`: [count][35][36][32]; `results_1` to `results_3`: planes; `later`: flipped
// weights of convolutions 4, 3 and 2, as steps. Masked gradients are written to `masked_1` to `masked_4` as
// planes, sums for the biases to `parts`.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gradients(const unsigned char* gradient, const uint4* results_1, const uint4* results_2,
              const uint4* results_3, const uint4* results_4, const unsigned char* later,
              uint4* masked_1, unsigned char* masked_2, unsigned char* masked_3,
              unsigned char* masked_4, float* parts, int count) {
  u32 start = shared_start(), x = start + X_START, y = start + Y_START;
  u32 w = start + BACK_WEIGHTS;
  int thread = threadIdx.x, warp = warp_uniform(thread / 32), lane = thread % 32;
  enum { FEATURES, WEIGHTS };
  Mbarriers<2> barriers{start + BACK_BARRIERS};
  barriers.init(thread);
  float sums[4] = {0, 0, 0, 0};  // for the biases

  auto copy = [&](int barrier, u32 to, const unsigned char* from, u32 bytes) {
    if (thread > 0) return;
    mbarrier_expect_bytes(barriers.at(barrier), bytes);
    copy_in(to, from, bytes, barriers.at(barrier));
  };
  auto begin_image = [&](int n) {
    copy(FEATURES, y, gradient + (u64)n * FEATURE_UNITS * UNIT, FEATURE_UNITS * UNIT);
  };
  auto copy_weights = [&](int number) {
    copy(WEIGHTS, w, later + number * WEIGHT_BYTES, WEIGHT_BYTES);
  };
  auto sync_shared_memory = [&] {
    if (thread < 4) wait_for_copies_out();
    fence_async_proxy();
    SYNC_THREADS();
  };

  if ((int)blockIdx.x < count) begin_image(blockIdx.x);
  for (int n = blockIdx.x; n < count; n += gridDim.x) {
    copy_weights(0);
    Padded<SIDE3> fourth{x};
    Padded<SIDE2> third{y};
    Padded<SIDE1> second{x};
    FirstGradient first{masked_1 + (u64)n * (4 * FirstGradient::STORED)};
    fourth.clear(thread);
    barriers.wait(FEATURES);
    sums[3] += mask_features(y, results_4 + (u64)n * FEATURE_UNITS, fourth, thread);
    sync_shared_memory();
    fourth.copy_to_global(masked_4, n, thread);
    third.clear(thread);
    barriers.wait(WEIGHTS);
    sums[2] += backward<SIDE3>(x, w, results_3 + (u64)n * (SIDE3 * SIDE3 * 4), warp, lane, third);
    sync_shared_memory();
    copy_weights(1);
    third.copy_to_global(masked_3, n, thread);
    second.clear(thread);
    barriers.wait(WEIGHTS);
    sums[1] += backward<SIDE2>(y, w, results_2 + (u64)n * (SIDE2 * SIDE2 * 4), warp, lane, second);
    sync_shared_memory();
    copy_weights(2);
    second.copy_to_global(masked_2, n, thread);
    if (n + (int)gridDim.x < count) begin_image(n + gridDim.x);
    first.clear_padding(thread);
    barriers.wait(WEIGHTS);
    sums[0] += backward<SIDE1>(x, w, results_1 + (u64)n * (SIDE1 * SIDE1 * 4), warp, lane, first);
    sync_shared_memory();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store_4_bytes(y + ((warp * 4 + i) * 32 + output_of(lane)) * 4, as_bits(sums[i]));
  SYNC_THREADS();
  if (thread < 32) {
    float total[4] = {0, 0, 0, 0};
    for (int other = 0; other < THREADS / 32; ++other) {
      u32 found[4];
      load_16_bytes(found, y + (other * 32 + thread) * UNIT);
#pragma unroll
      for (int j = 0; j < 4; ++j) total[j] += as_float(found[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sums_of_block(parts)[BIAS_NUMBERS + 4 * thread + j] = total[j];
  }
}

// Weight gradients: for each step of 16 terms, the transposed pixels times the masked gradient of the
// results. Pieces of both are copied while earlier pieces are multiplied. Each warp sums over some of the
// positions of all images of a block (its share), for some of the terms (its part). The shares are added
// at the end, in a fixed order.
template <int THREADS_, int SHARES_, int STAGES_, int STEPS_, int PIXELS_BYTES_, int POSITIONS_>
struct WeightGradient {
  static constexpr int THREADS = THREADS_, SHARES = SHARES_, STAGES = STAGES_, POSITIONS = POSITIONS_;
  static constexpr int WARPS = THREADS / 32, PARTS = WARPS / SHARES, STEPS = STEPS_;
  static constexpr int TERMS = 16 * PARTS;  // of all parts in a step
  static constexpr int PIXELS_BYTES = PIXELS_BYTES_, NUMBERS = STEPS * TERMS * 32;
  static constexpr int STAGE = PIXELS_BYTES + POSITIONS * PIXEL_BYTES, BYTES = STAGES * STAGE;
  static_assert(SHARES * NUMBERS * 4 <= BYTES, "the sums of all warps fit");

  // Sums over `images` images of `pieces` pieces. `copy(n, piece, to, barrier, worker)`, called by all
  // threads, copies a piece: the pixels to `to` and the masked gradient, as planes of POSITIONS, to
  // `to` + PIXELS_BYTES. `pixel(to, step, eight, position)`: address of eight terms of a step at a position.
  // `blocks(piece)`: the number of positions, divided by 16.
  template <class Copy, class Blocks, class Pixel>
  static __device__ __forceinline__ void run(u32 start, Mbarriers<STAGES>& barriers, int pieces,
                                             int images, const Copy& copy, const Blocks& blocks,
                                             const Pixel& pixel, float* out) {
    int thread = threadIdx.x, warp = warp_uniform(thread / 32), lane = thread % 32;
    int share = warp % SHARES, part = warp / SHARES, numbers = images * pieces;
    auto begin = [&](int number) {
      if (number < numbers)
        copy(blockIdx.x + number / pieces * gridDim.x, number % pieces,
             start + number % STAGES * STAGE, barriers.at(number % STAGES), lane * WARPS + warp);
    };
    float sum[STEPS][4][4];
#pragma unroll
    for (int i = 0; i < STEPS * 16; ++i) sum[i / 16][i / 4 % 4][i % 4] = 0.0f;
    SYNC_THREADS();
    for (int i = thread; i < BYTES / UNIT; i += THREADS)  // no NaN where no_op is copied to
      store_16_bytes(start + i * UNIT, 0, 0, 0, 0);
    fence_async_proxy();
    SYNC_THREADS();
    for (int number = 0; number < STAGES - 1; ++number) begin(number);
#pragma unroll 1
    for (int number = 0; number < numbers; ++number) {
      SYNC_THREADS();
      begin(number + STAGES - 1);
      barriers.wait(number % STAGES);
      u32 to = start + number % STAGES * STAGE, masked = to + PIXELS_BYTES;
      int count = blocks(number % pieces);
#pragma unroll 1
      for (int block = share; block < count; block += SHARES) {
        u32 b[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j)
          load_matrix_transposed(
              b[j], masked + ((2 * j + (lane >> 4)) * POSITIONS + 16 * block + (lane & 15)) * UNIT);
        int position = 16 * block + (lane >> 4) * 8 + (lane & 7), eight = 2 * part + (lane >> 3 & 1);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          u32 a[4];
          load_matrix_transposed(a, pixel(to, step, eight, position));
#pragma unroll
          for (int n = 0; n < 4; ++n)
            multiply_add(sum[step][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
    SYNC_THREADS();
#pragma unroll
    for (int i = 0; i < STEPS * 16; i += 2) {
      int step = i / 16, n = i / 4 % 4, half = i / 2 % 2;
      int row = 16 * part + (lane >> 2) + 8 * half, output = 8 * n + 2 * (lane & 3);
      u32 position = start + (share * NUMBERS + (step * TERMS + row) * 32 + output) * 4;
      store_4_bytes(position, as_bits(sum[step][n][2 * half]));
      store_4_bytes(position + 4, as_bits(sum[step][n][2 * half + 1]));
    }
    SYNC_THREADS();
    for (int i = thread; i < NUMBERS / 4; i += THREADS) {
      float total[4] = {0, 0, 0, 0};
#pragma unroll
      for (int other = 0; other < SHARES; ++other) {
        u32 found[4];
        load_16_bytes(found, start + (other * NUMBERS + 4 * i) * 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) total[j] += as_float(found[j]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) out[4 * i + j] = total[j];
    }
  }
};
__device__ __forceinline__ int images_of_block(int count) {
  return (int)blockIdx.x < count ? (count - 1 - (int)blockIdx.x) / (int)gridDim.x + 1 : 0;
}

// The first convolution, in bands of eight rows. `masked`: planes of FirstGradient::STORED positions.
constexpr int SUM_ROWS = 8, SUM_BANDS = 6;
using SumPixels = Band<SUM_ROWS>;
using FirstWeightGradient = WeightGradient<224, 7, 4, FIRST_STEPS, SumPixels::BYTES, SUM_ROWS * HALF>;
static_assert(FIRST_NUMBERS == FirstWeightGradient::NUMBERS, "the sums of the later weights follow");
extern "C" __global__ void __launch_bounds__(FirstWeightGradient::THREADS, 1)
    first_weight_gradient(const unsigned char* images, const long long* sample,
                          const long long* origins, const unsigned char* masked, float* parts, int count,
                          int height, int columns) {
  u32 start = shared_start();
  Mbarriers<FirstWeightGradient::STAGES> barriers{start + FirstWeightGradient::BYTES};
  barriers.init(threadIdx.x);
  auto rows_of = [&](int band) { return band < SUM_BANDS - 1 ? SUM_ROWS : SIDE1 - 5 * SUM_ROWS; };
  auto blocks = [&](int band) { return (rows_of(band) * HALF + 15) / 16; };
  auto copy = [&](int n, int band, u32 to, u32 barrier, int worker) {
    int rows = rows_of(band);
    u32 bytes = blocks(band) * 16 * UNIT;
    if (worker == 0) mbarrier_expect_bytes(barrier, SumPixels::lines(rows) * HALF * UNIT + 4 * bytes);
    if (worker < 4)
      copy_in(to + FirstWeightGradient::PIXELS_BYTES + worker * FirstWeightGradient::POSITIONS * UNIT,
              masked + (((u64)n * 4 + worker) * FirstGradient::STORED +
                        band * FirstWeightGradient::POSITIONS) * UNIT,
              bytes, barrier);
    SumPixels::copy(Crop(images, sample, origins, n, height, columns), SUM_ROWS * band, rows, to,
                    barrier, worker);
  };
  auto pixel = [&](u32 to, int step, int eight, int position) {
    return to + (SumPixels::terms(2 * step) + eight * SumPixels::to_second(step) + position) * UNIT;
  };
  FirstWeightGradient::run(start, barriers, SUM_BANDS, images_of_block(count), copy, blocks, pixel,
                 sums_of_block(parts));
}

// A later convolution, from SIDE x SIDE inputs in planes. `masked`: planes of CHUNKS pieces.
constexpr int STAGES = 4;
template <int SIDE> struct LaterWeightGradient {
  static constexpr int CHUNK = chunk_of(SIDE), PLANE = CHUNK + 2 * SIDE + 2;
  using All = WeightGradient<256, 4, STAGES, 9, PLANE * PIXEL_BYTES, CHUNK>;
  static __device__ __forceinline__ void run(u32 start, Mbarriers<STAGES>& barriers,
                                             const unsigned char* inputs, const unsigned char* masked,
                                             float* out, int count) {
    auto copy = [&](int n, int chunk, u32 to, u32 barrier, int worker) {
      int first = chunk * CHUNK, left = SIDE * SIDE - first, pixels = left < PLANE ? left : PLANE;
      u64 plane = (u64)n * 4 + (worker & 3);
      if (worker == 0) mbarrier_expect_bytes(barrier, 4 * (pixels + CHUNK) * UNIT);
      if (worker < 4)
        copy_in(to + worker * PLANE * UNIT, inputs + (plane * SIDE * SIDE + first) * UNIT,
                pixels * UNIT, barrier);
      else if (worker < 8)
        copy_in(to + All::PIXELS_BYTES + (worker & 3) * CHUNK * UNIT,
                masked + (plane * CHUNKS * CHUNK + first) * UNIT, CHUNK * UNIT, barrier);
    };
    auto pixel = [&](u32 to, int tap, int eight, int position) {
      return to + (eight * PLANE + position + tap / 3 * SIDE + tap % 3) * UNIT;
    };
    All::run(start, barriers, CHUNKS, images_of_block(count), copy, [](int) { return CHUNK / 16; },
             pixel, out);
  }
};
constexpr int LATER_BYTES = LaterWeightGradient<SIDE1>::All::BYTES;
static_assert(LaterWeightGradient<SIDE2>::All::BYTES <= LATER_BYTES, "the largest is first");
extern "C" __global__ void __launch_bounds__(256, 1)
    later_weight_gradients(const unsigned char* results_1, const unsigned char* results_2,
                           const unsigned char* results_3, const unsigned char* masked_2,
                           const unsigned char* masked_3, const unsigned char* masked_4, float* parts,
                           int count) {
  u32 start = shared_start();
  float* out = sums_of_block(parts) + FIRST_NUMBERS;
  Mbarriers<STAGES> barriers{start + LATER_BYTES};
  barriers.init(threadIdx.x);
  LaterWeightGradient<SIDE1>::run(start, barriers, results_1, masked_2, out, count);
  LaterWeightGradient<SIDE2>::run(start, barriers, results_2, masked_3, out + LATER_NUMBERS, count);
  LaterWeightGradient<SIDE3>::run(start, barriers, results_3, masked_4, out + 2 * LATER_NUMBERS, count);
}
