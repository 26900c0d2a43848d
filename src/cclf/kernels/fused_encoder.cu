// The encoder's four convolutions in one kernel: a block keeps an image in shared memory from its
// pixels to its features.
//
// 84 x 84 pixels of 16 channels (packed frames, read at the corner of a crop) become 41 x 41,
// 39 x 39, 37 x 37 and 35 x 35 pixels of 32 channels, each with bias and ReLU, in bfloat16 with
// float32 sums. Every convolution is a sum of matrix products, one for each tap and 16 channels: 64
// neighbouring pixels times 16 channels times 32 outputs (wgmma.m64n32k16, by four warps).
//
// An image lies in shared memory as planes of eight channels, 16 bytes a pixel, row after row. So
// the pixels under a tap are those under the first tap, some places further on, also where a row
// ends: two results there belong to no pixel and are left out.
//
// Shared memory:   a: results of convolution 1, then of 3    b: rows of pixels, then results of 2
//                  w: weights of 2, then of 3; those of 4 lie behind the results of 3

typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef CCLF_PRIMITIVES
__device__ __forceinline__ u32 shared_start() {
  extern __shared__ __align__(128) unsigned char memory[];
  return (u32)__cvta_generic_to_shared(memory);
}
// 16 x 16 numbers of a warp: lane l names row l % 16, the first or the last eight terms.
__device__ __forceinline__ void load_matrix(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
// The same, turned: rows of what is stored become columns.
__device__ __forceinline__ void load_turned_matrix(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
// sum += a b of one warp: 16 x 16 times 16 x 8.
__device__ __forceinline__ void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// sum (+)= a b: a in the registers of four warps, b in shared memory, named by where its first 16
// bytes lie, and how far it is from there to the next eight terms and to the next eight outputs.
__device__ __forceinline__ void multiply_add(float (&d)[16], const u32 (&a)[4], u64 b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_of_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// What this thread wrote to shared memory can be read by products after the next barrier.
__device__ __forceinline__ void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void copy_16_bytes(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void end_of_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wait_until_open_copies_are() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
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
__device__ __forceinline__ u32 rounded(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// The same number in all lanes, as the compiler then knows.
__device__ __forceinline__ int alike(int value) { return __shfl_sync(0xffffffffu, value, 0); }
__device__ __forceinline__ u32 from_lane(u32 value, int other) {
  return __shfl_xor_sync(0xffffffffu, value, other);
}
#define BARRIER() __syncthreads()
#endif

constexpr int THREADS = 512, GROUPS = THREADS / 128;  // of four warps each
constexpr int CROP = 84, SIDE1 = 41, SIDE2 = 39, SIDE3 = 37, SIDE4 = 35;
constexpr int UNIT = 16;               // bytes: eight channels of a pixel
constexpr int PIXEL_BYTES = 4 * UNIT;  // 32 channels
constexpr int INPUT_BYTES = 2 * UNIT;  // 16 channels
constexpr int ROW_BYTES = CROP * INPUT_BYTES;
constexpr int STEP_BYTES = 16 * 32 * 2;  // weights of 16 channels of a tap
constexpr int FIRST_WEIGHT_BYTES = 9 * STEP_BYTES, WEIGHT_BYTES = 18 * STEP_BYTES;
constexpr int BANDS = 5, FIRST_ROWS = 9, OTHER_ROWS = 8;  // 9 + 4 x 8 = 41 rows of results
constexpr int FIRST_BUFFER = (2 * FIRST_ROWS + 1) * ROW_BYTES;
constexpr int OTHER_BUFFER = (2 * OTHER_ROWS + 1) * ROW_BYTES;
constexpr int A_START = 0, A_BYTES = SIDE1 * SIDE1 * PIXEL_BYTES;
constexpr int W_START = A_BYTES, B_START = W_START + WEIGHT_BYTES;
constexpr int FIRST_WEIGHTS = B_START + FIRST_BUFFER + OTHER_BUFFER;
constexpr int ALL_BYTES = FIRST_WEIGHTS + FIRST_WEIGHT_BYTES;
constexpr int LAST_WEIGHTS = SIDE3 * SIDE3 * PIXEL_BYTES;  // in a, behind the results of 3
static_assert(SIDE2 * SIDE2 * PIXEL_BYTES <= ALL_BYTES - B_START, "results of 2 fit in b");
static_assert(LAST_WEIGHTS + WEIGHT_BYTES <= A_BYTES, "the last weights fit in a");

// A matrix in shared memory, in units: its place, and the way to the next eight terms and rows.
__device__ __forceinline__ u64 matrix(u32 place, u32 next_terms) {
  constexpr u64 NEXT_ROWS = 8;
  return (u64)(place / UNIT) | (u64)(next_terms / UNIT) << 16 | NEXT_ROWS << 32;
}

__device__ __forceinline__ void copy_all(u32 to, const unsigned char* from, int bytes, int thread) {
  for (int i = thread; i < bytes / UNIT; i += THREADS) copy_16_bytes(to + UNIT * i, from + UNIT * i);
}

// Rows of pixels under one band of results of convolution 1, which are two pixels apart: even and
// odd rows and columns lie in planes of their own, where neighbours are neighbours again.
constexpr int HALF = CROP / 2;
__device__ __forceinline__ int band_start(int band) {
  return band == 0 ? 0 : FIRST_ROWS + (band - 1) * OTHER_ROWS;
}
__device__ __forceinline__ int band_rows(int band) { return band == 0 ? FIRST_ROWS : OTHER_ROWS; }
__device__ __forceinline__ int even_rows(int band) {  // in its buffer
  return (band & 1 ? OTHER_ROWS : FIRST_ROWS) + 1;
}
__device__ __forceinline__ u32 input_plane(int band, int row_odd, int column_odd, int eight) {
  int even = even_rows(band), plane = 2 * column_odd + eight;
  int rows = row_odd ? 4 * even + plane * (even - 1) : plane * even;
  return (u32)((band & 1) * FIRST_BUFFER + rows * HALF * UNIT);
}

__device__ __forceinline__ void copy_band(u32 b, const unsigned char* corner, int width, int band,
                                          int thread) {
  const unsigned char* from = corner + (u64)(2 * band_start(band)) * width * INPUT_BYTES;
  for (int i = thread; i < (2 * band_rows(band) + 1) * (2 * CROP); i += THREADS) {
    int row = i / (2 * CROP), unit = i % (2 * CROP), column = unit >> 1;
    u32 plane = b + input_plane(band, row & 1, column & 1, unit & 1);
    copy_16_bytes(plane + ((row >> 1) * HALF + (column >> 1)) * UNIT,
                  from + (u64)row * width * INPUT_BYTES + UNIT * unit);
  }
}

// Four lanes have two outputs each of four groups of eight: afterwards each has one group.
__device__ __forceinline__ void swap(u32& first, u32& second, bool above, int other) {
  u32 got = from_lane(above ? first : second, other);  // the lane below gives its second value
  first = above ? got : first;
  second = above ? second : got;
}
__device__ __forceinline__ void turn(u32 (&value)[4], int pair) {
  swap(value[0], value[1], pair & 1, 1);
  swap(value[2], value[3], pair & 1, 1);
  swap(value[0], value[2], pair & 2, 2);
  swap(value[1], value[3], pair & 2, 2);
}

// Of 64 neighbouring results, the one that this lane names in `load_matrix`.
__device__ __forceinline__ int row_of(int tile, int warp, int lane) {
  return tile * 64 + (warp & 3) * 16 + (lane & 15);
}

// Where the SIDE x SIDE results of a convolution go. STAY: into planes in shared memory at `to`.
// LEAVE: into global memory at `out`, pixel after pixel; rows are one pixel longer there, zero.
template <int SIDE_, bool STAY, bool LEAVE> struct Results {
  static constexpr int SIDE = SIDE_;
  u32 to;
  u32* out;

  // Of one pixel, two outputs of each group of eight: this lane's.
  __device__ __forceinline__ void store(int row, int column, u32 (&value)[4], int lane) const {
    bool inside = row < SIDE && column < SIDE;
    int pair = lane & 3;
    if (STAY && inside)
#pragma unroll
      for (int n = 0; n < 4; ++n)
        store_4_bytes(to + ((n * SIDE + row) * SIDE + column) * UNIT + 4 * pair, value[n]);
    if (!LEAVE) return;
    turn(value, pair);
    if (!inside) return;
    uint4* pixel = reinterpret_cast<uint4*>(out) + (row * (SIDE + 1) + column) * 4 + pair;
    *pixel = make_uint4(value[0], value[1], value[2], value[3]);
    if (column == SIDE - 1) pixel[4] = make_uint4(0, 0, 0, 0);
  }
};

// Bias and ReLU of 64 neighbouring results, `begin` and on, where rows are WIDTH places long.
template <int WIDTH, class Results>
__device__ __forceinline__ void finish(const float (&sum)[16], const float (&bias)[8], int begin,
                                       int first_row, int rows, const Results& results, int warp,
                                       int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int place = begin + (warp & 3) * 16 + 8 * half + (lane >> 2), row = place / WIDTH;
    u32 value[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      value[n] = rounded(fmaxf(sum[4 * n + 2 * half] + bias[2 * n], 0.0f),
                         fmaxf(sum[4 * n + 2 * half + 1] + bias[2 * n + 1], 0.0f));
    results.store(row < rows ? first_row + row : Results::SIDE, place % WIDTH, value, lane);
  }
}
__device__ __forceinline__ void load_bias(float (&values)[8], const float* bias, int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = bias[i / 2 * 8 + 2 * (lane & 3) + i % 2];
}

// Results of convolution 1 in one band.
template <class Results>
__device__ __forceinline__ void first_convolution(u32 b, u32 weights, int band,
                                                  const float (&bias)[8], const Results& results,
                                                  int warp, int lane) {
  int rows = band_rows(band);
  u64 factors = matrix(weights, STEP_BYTES / 2);
  for (int tile = warp >> 2; tile * 64 < rows * HALF; tile += GROUPS) {
    u32 pixels[9][4];
#pragma unroll
    for (int tap = 0; tap < 9; ++tap) {
      int dy = tap / 3, dx = tap % 3;
      u32 plane = b + input_plane(band, dy & 1, dx & 1, lane >> 4);
      load_matrix(pixels[tap], plane + (row_of(tile, warp, lane) + dy / 2 * HALF + dx / 2) * UNIT);
    }
    float sum[16];
    begin_products();
#pragma unroll
    for (int tap = 0; tap < 9; ++tap)
      multiply_add(sum, pixels[tap], factors + tap * (STEP_BYTES / UNIT), tap > 0);
    end_of_products();
    wait_for_products();
    finish<HALF>(sum, bias, tile * 64, band_start(band), rows, results, warp, lane);
  }
}

// A 3 x 3 convolution over 32 channels, of planes of PLANE pixels at `from` in rows of WIDTH pixels:
// `finish(sum, begin)` for every 64 of COUNT neighbouring results.
template <int WIDTH, int PLANE, int COUNT, class Finish>
__device__ __forceinline__ void convolve(u32 from, u32 weights, int warp, int lane,
                                         const Finish& finish) {
  u64 factors = matrix(weights, STEP_BYTES / 2);
  for (int tile = warp >> 2; tile * 64 < COUNT; tile += GROUPS) {
    u32 place = from + ((lane >> 4) * PLANE + row_of(tile, warp, lane)) * UNIT;
    float sum[16];
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of the steps: loads of one beside products of the other
      u32 pixels[9][4];
#pragma unroll
      for (int i = 0; i < 9; ++i) {
        int step = 9 * half + i, tap = step / 2, part = step % 2;
        load_matrix(pixels[i], place + (2 * part * PLANE + tap / 3 * WIDTH + tap % 3) * UNIT);
      }
      begin_products();
#pragma unroll
      for (int i = 0; i < 9; ++i) {
        int step = 9 * half + i;
        multiply_add(sum, pixels[i], factors + step * (STEP_BYTES / UNIT), step > 0);
      }
      end_of_products();
    }
    wait_for_products();
    finish(sum, tile * 64);
  }
}

// A later convolution forward, of SIDE x SIDE pixels at `from`.
template <int SIDE, class Results>
__device__ __forceinline__ void convolve_and_cut(u32 from, u32 weights, const float* all_bias,
                                                 const Results& results, int warp, int lane) {
  float bias[8];
  load_bias(bias, all_bias, lane);
  convolve<SIDE, SIDE * SIDE, (SIDE - 2) * SIDE>(
      from, weights, warp, lane, [&](const float(&sum)[16], int begin) {
        finish<SIDE>(sum, bias, begin, 0, SIDE - 2, results, warp, lane);
      });
}

// Weights as `multiply_add` wants them, in steps of 16 channels of a tap, each [2][4][8 outputs][8
// channels]: `first` has 9 steps, `later` 3 x 18. `bias`: [4][32]. KEEP: results of convolutions 1
// to 3 are written to `kept_1` to `kept_3` too.
template <bool KEEP>
__device__ __forceinline__ void encode(const unsigned char* images, const long long* sample,
                                       const long long* origins, const unsigned char* first,
                                       const unsigned char* later, const float* bias,
                                       u32* features, u32* kept_1, u32* kept_2, u32* kept_3,
                                       int count, int height, int width) {
  u32 start = shared_start(), a = start + A_START, b = start + B_START, w = start + W_START;
  int thread = threadIdx.x, warp = alike(thread / 32), lane = thread % 32;

  auto corner_of = [&](int n) {
    u64 row = (u64)(sample[n] * height + origins[2 * n]);
    return images + (row * width + origins[2 * n + 1]) * INPUT_BYTES;
  };
  auto begin_image = [&](int n) {  // its first weights and pixels, while the one before is finished
    copy_band(b, corner_of(n), width, 0, thread);
    copy_all(start + FIRST_WEIGHTS, first, FIRST_WEIGHT_BYTES, thread);
    end_of_copies();
    copy_band(b, corner_of(n), width, 1, thread);
    end_of_copies();
    copy_all(w, later, WEIGHT_BYTES, thread);
    end_of_copies();
  };
  auto everybody_sees = [&] {
    show_to_products();
    BARRIER();
  };
  auto place_of = [&](u32* results, int side, int n) {
    return results + (u64)n * (side * (side + 1) * (PIXEL_BYTES / 4));
  };

  if ((int)blockIdx.x < count) begin_image(blockIdx.x);
  for (int n = blockIdx.x; n < count; n += gridDim.x) {
    Results<SIDE1, true, KEEP> results_1{a, place_of(kept_1, SIDE1, n)};
    Results<SIDE2, true, KEEP> results_2{b, place_of(kept_2, SIDE2, n)};
    Results<SIDE3, true, KEEP> results_3{a, place_of(kept_3, SIDE3, n)};
    Results<SIDE4, false, true> results_4{0, place_of(features, SIDE4, n)};
    float first_bias[8];
    load_bias(first_bias, bias, lane);
#pragma unroll 1
    for (int band = 0; band < BANDS; ++band) {
      // younger than those of this band: the next band's, and at first the weights
      if (band == 0) wait_until_open_copies_are<2>();
      else wait_until_open_copies_are<1>();
      everybody_sees();
      first_convolution(b, start + FIRST_WEIGHTS, band, first_bias, results_1, warp, lane);
      BARRIER();
      if (band + 2 < BANDS) copy_band(b, corner_of(n), width, band + 2, thread);
      end_of_copies();
    }
    wait_until_open_copies_are<0>();
    everybody_sees();
    convolve_and_cut<SIDE1>(a, w, bias + 32, results_2, warp, lane);
    everybody_sees();
    copy_all(w, later + WEIGHT_BYTES, WEIGHT_BYTES, thread);
    end_of_copies();
    copy_all(a + LAST_WEIGHTS, later + 2 * WEIGHT_BYTES, WEIGHT_BYTES, thread);
    end_of_copies();
    wait_until_open_copies_are<1>();
    everybody_sees();
    convolve_and_cut<SIDE2>(b, w, bias + 64, results_3, warp, lane);
    wait_until_open_copies_are<0>();
    everybody_sees();
    if (n + (int)gridDim.x < count) begin_image(n + gridDim.x);
    convolve_and_cut<SIDE3>(a, a + LAST_WEIGHTS, bias + 96, results_4, warp, lane);
    BARRIER();
  }
}

#define ENCODER(name, KEEP)                                                                        \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                         \
      name(const unsigned char* images, const long long* sample, const long long* origins,         \
           const unsigned char* first, const unsigned char* later, const float* bias,              \
           u32* features, u32* kept_1, u32* kept_2, u32* kept_3, int count, int height,            \
           int width) {                                                                            \
    encode<KEEP>(images, sample, origins, first, later, bias, features, kept_1, kept_2, kept_3,    \
                 count, height, width);                                                            \
  }
ENCODER(encode_frozen, false)
ENCODER(encode_and_keep, true)

// Backward through the last three convolutions: a block keeps the gradient of an image on the chip
// from the features to the results of convolution 1, cuts it at every ReLU and sums it for the biases.
//
// The gradient of a convolution's SIDE - 2 rows and columns lies in rows of SIDE pixels, with zeros
// where there are none: two columns behind, two rows above and below, which the planes share. So the
// gradient of its SIDE x SIDE inputs is a convolution again, with every weight turned about.
//
// Shared memory:   x: gradient of 4, then of 2    y: of the features as they come, then of 3    w: weights
template <int SIDE> struct Padded {
  static constexpr int PLANE = SIDE * SIDE, BYTES = (2 + 4 * PLANE + 2 * SIDE) * UNIT;
  static __device__ __forceinline__ u32 place(int group, int row, int column) {
    return (u32)(2 + group * PLANE + (row + 2) * SIDE + column) * UNIT;
  }
  // Zeros around what will be stored.
  static __device__ __forceinline__ void clear(u32 at, int thread) {
    constexpr int ROWS = 4 * SIDE + 2;  // of all planes and the zeros below the last
    for (int i = thread; i < ROWS * 2; i += THREADS) {
      int row = i >> 1, column = SIDE - 2 + (i & 1);
      store_16_bytes(at + (2 + row * SIDE + column) * UNIT, 0, 0, 0, 0);
    }
    for (int i = thread; i < 5 * 2 * SIDE; i += THREADS) {
      int group = i / (2 * SIDE), place = i % (2 * SIDE);
      store_16_bytes(at + (2 + group * PLANE + place) * UNIT, 0, 0, 0, 0);
    }
    if (thread < 2) store_16_bytes(at + thread * UNIT, 0, 0, 0, 0);
  }
};
constexpr int X_BYTES = Padded<SIDE1>::BYTES, Y_BYTES = Padded<SIDE2>::BYTES;
constexpr int X_START = 0, Y_START = X_BYTES, BACK_WEIGHTS = X_BYTES + Y_BYTES;
constexpr int BACK_BYTES = BACK_WEIGHTS + WEIGHT_BYTES;
constexpr int FEATURE_UNITS = SIDE4 * (SIDE4 + 1) * 4;
static_assert(Padded<SIDE3>::BYTES <= X_BYTES && FEATURE_UNITS * UNIT <= Y_BYTES, "they fit");
constexpr int PARTS = 4 * 32;  // sums of a warp, for the biases of 1 to 4

// 0xffff where a 16-bit number of `values` is above zero: none is below.
__device__ __forceinline__ u32 where_above_zero(u32 values) {
  return (((values & 0x7fff7fffu) + 0x7fff7fffu & 0x80008000u) >> 15) * 0xffffu;
}
__device__ __forceinline__ void cut(u32 (&value)[4], const uint4& results, float (&total)[8]) {
  u32 reached[4] = {results.x, results.y, results.z, results.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    value[i] &= where_above_zero(reached[i]);
    total[2 * i] += as_float(value[i] << 16);
    total[2 * i + 1] += as_float(value[i] & 0xffff0000u);
  }
}
// Sums over the lanes that have the same outputs; one lane adds them to what its warp has so far.
__device__ __forceinline__ void add_up(float (&total)[8], float* parts, int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int other = 4; other < 32; other *= 2)
      total[i] += as_float(from_lane(as_bits(total[i]), other));
    if (lane < 4) parts[8 * lane + i] += total[i];
  }
}

// Of SIDE x SIDE results: from the gradient at `from` the one before, cut where `results` are zero,
// to `out`, and for the next step to `to`.
template <int SIDE, bool STAY>
__device__ __forceinline__ void go_back(u32 from, u32 weights, u32 to, const u32* results, u32* out,
                                        float* parts, int warp, int lane) {
  float total[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  int pair = lane & 3;
  convolve<SIDE, SIDE * SIDE, SIDE * SIDE>(
      from, weights, warp, lane, [&](const float(&sum)[16], int begin) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int place = begin + (warp & 3) * 16 + 8 * half + (lane >> 2);
          int row = place / SIDE, column = place % SIDE;
          u32 value[4];
#pragma unroll
          for (int n = 0; n < 4; ++n)
            value[n] = rounded(sum[4 * n + 2 * half], sum[4 * n + 2 * half + 1]);
          turn(value, pair);
          if (row >= SIDE) continue;
          int at = (row * (SIDE + 1) + column) * 4 + pair;
          cut(value, reinterpret_cast<const uint4*>(results)[at], total);
          uint4* pixel = reinterpret_cast<uint4*>(out) + at;
          *pixel = make_uint4(value[0], value[1], value[2], value[3]);
          if (column == SIDE - 1) pixel[4] = make_uint4(0, 0, 0, 0);
          if (STAY)
            store_16_bytes(to + Padded<SIDE + 2>::place(pair, row, column), value[0], value[1],
                           value[2], value[3]);
        }
      });
  add_up(total, parts, lane);
}

// `gradient` and `results_4`: [count][35][36][32]; `later`: weights of 4, 3, 2 in this order, turned
// about, as steps. Cut gradients go to `cut_4` to `cut_1`, sums for the biases to `parts`: [blocks]
// [warps][4][32], zeros at first.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gradients(const u32* gradient, const u32* results_1, const u32* results_2, const u32* results_3,
              const u32* results_4, const unsigned char* later, u32* cut_1, u32* cut_2, u32* cut_3,
              u32* cut_4, float* parts, int count) {
  u32 start = shared_start(), x = start + X_START, y = start + Y_START;
  u32 w = start + BACK_WEIGHTS;
  int thread = threadIdx.x, warp = alike(thread / 32), lane = thread % 32;
  float* mine = parts + ((u64)blockIdx.x * (THREADS / 32) + warp) * PARTS;

  auto begin_image = [&](int n) {
    const unsigned char* from = reinterpret_cast<const unsigned char*>(gradient);
    copy_all(y, from + (u64)n * FEATURE_UNITS * UNIT, FEATURE_UNITS * UNIT, thread);
    end_of_copies();
  };
  auto copy_weights = [&](int number) {
    copy_all(w, later + number * WEIGHT_BYTES, WEIGHT_BYTES, thread);
    end_of_copies();
  };
  auto everybody_sees = [&] {
    wait_until_open_copies_are<0>();
    show_to_products();
    BARRIER();
  };

  if ((int)blockIdx.x < count) begin_image(blockIdx.x);
  for (int n = blockIdx.x; n < count; n += gridDim.x) {
    copy_weights(0);
    Padded<SIDE3>::clear(x, thread);
    everybody_sees();
    {
      u64 first = (u64)n * FEATURE_UNITS;
      float total[8] = {0, 0, 0, 0, 0, 0, 0, 0};
      for (int i = thread; i < FEATURE_UNITS; i += THREADS) {
        int pixel = i >> 2, group = i & 3, row = pixel / (SIDE4 + 1), column = pixel % (SIDE4 + 1);
        u32 value[4];
        load_16_bytes(value, y + i * UNIT);
        cut(value, reinterpret_cast<const uint4*>(results_4)[first + i], total);
        reinterpret_cast<uint4*>(cut_4)[first + i] =
            make_uint4(value[0], value[1], value[2], value[3]);
        if (column < SIDE4)
          store_16_bytes(x + Padded<SIDE3>::place(group, row, column), value[0], value[1], value[2],
                         value[3]);
      }
      add_up(total, mine + 96, lane);
    }
    BARRIER();  // y has been read
    Padded<SIDE2>::clear(y, thread);
    u64 third = (u64)n * (SIDE3 * (SIDE3 + 1) * 16), second = (u64)n * (SIDE2 * (SIDE2 + 1) * 16);
    u64 first = (u64)n * (SIDE1 * (SIDE1 + 1) * 16);
    go_back<SIDE3, true>(x, w, y, results_3 + third, cut_3 + third, mine + 64, warp, lane);
    BARRIER();
    copy_weights(1);
    Padded<SIDE1>::clear(x, thread);
    everybody_sees();
    go_back<SIDE2, true>(y, w, x, results_2 + second, cut_2 + second, mine + 32, warp, lane);
    BARRIER();
    copy_weights(2);
    everybody_sees();
    if (n + (int)gridDim.x < count) begin_image(n + gridDim.x);
    go_back<SIDE1, false>(x, w, 0, results_1 + first, cut_1 + first, mine, warp, lane);
    BARRIER();
  }
}

// Gradients of the weights: for each tap the pixels under it, turned, times the cut gradient of the
// results. Bands of eight rows of both are copied while the one before is multiplied. Each warp sums
// over its share of the pixels of all images of a block, for 16 channels; the shares are added at the
// end, in one order.
constexpr int BAND_ROWS = 8;

// Shares of the pixels: with 42, 40 or 38 places in a row a band is 21, 20 or 19 times 16 of them.
template <int THREADS_, int SHARES_, int STAGES, int PIXEL_BYTES_, int WIDTH_> struct Sums {
  static constexpr int THREADS = THREADS_, SHARES = SHARES_, WIDTH = WIDTH_;
  static constexpr int PARTS = THREADS / 32 / SHARES, CHANNELS = 16 * PARTS;  // of 16 channels
  static constexpr int PLACES = BAND_ROWS * WIDTH, NUMBERS = 9 * CHANNELS * 32;
  static constexpr int STAGE = PIXEL_BYTES_ + PLACES * PIXEL_BYTES, BYTES = STAGES * STAGE;
  static_assert(SHARES * NUMBERS * 4 <= BYTES, "the sums of all warps fit");

  // `copy_pixels(n, band, rows, to, thread)` copies those under a band to a stage at `to`, where
  // `pixel(to, eight, place, dy, dx)` lies. An image has `cut_bytes` of cut gradient, in rows of
  // `cut_width` pixels.
  template <class Copy, class Pixel>
  static __device__ __forceinline__ void run(u32 start, int bands, int last_rows, int images,
                                             const Copy& copy_pixels, const unsigned char* cut,
                                             u64 cut_bytes, int cut_width, const Pixel& pixel,
                                             float* out) {
    int thread = threadIdx.x, warp = alike(thread / 32), lane = thread % 32;
    int share = warp % SHARES, part = warp / SHARES, numbers = images * bands;
    auto copy = [&](int number) {
      if (number < numbers) {
        int n = blockIdx.x + number / bands * gridDim.x, band = number % bands;
        int rows = band < bands - 1 ? BAND_ROWS : last_rows;
        u32 to = start + number % STAGES * STAGE, slopes = to + PIXEL_BYTES_;
        copy_pixels(n, band, rows, to, thread);
        const unsigned char* from = cut + n * cut_bytes + (u64)BAND_ROWS * band * cut_width * PIXEL_BYTES;
        for (int i = thread; i < rows * cut_width * 4; i += THREADS) {
          int place = (i >> 2) / cut_width * WIDTH + (i >> 2) % cut_width;
          copy_16_bytes(slopes + ((i & 3) * PLACES + place) * UNIT, from + UNIT * i);
        }
        if (rows < BAND_ROWS)  // no rest of another band among the last 16
          for (int i = thread; i < 16 * 4; i += THREADS)
            store_16_bytes(slopes + ((i & 3) * PLACES + rows * WIDTH + (i >> 2)) * UNIT, 0, 0, 0, 0);
      }
      end_of_copies();
    };
    float sum[9][4][4];
#pragma unroll
    for (int i = 0; i < 144; ++i) sum[i / 16][i / 4 % 4][i % 4] = 0.0f;
    BARRIER();
    for (int i = thread; i < BYTES / UNIT; i += THREADS)  // where nothing is copied to, and no NaN
      store_16_bytes(start + i * UNIT, 0, 0, 0, 0);
    BARRIER();
    for (int number = 0; number < STAGES - 1; ++number) copy(number);
#pragma unroll 1
    for (int number = 0; number < numbers; ++number) {
      wait_until_open_copies_are<STAGES - 2>();
      BARRIER();
      copy(number + STAGES - 1);
      u32 to = start + number % STAGES * STAGE, slopes = to + PIXEL_BYTES_;
      int rows = number % bands < bands - 1 ? BAND_ROWS : last_rows;
#pragma unroll 1
      for (int block = share; block * 16 < rows * WIDTH; block += SHARES) {
        u32 b[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j)
          load_turned_matrix(
              b[j], slopes + ((2 * j + (lane >> 4)) * PLACES + 16 * block + (lane & 15)) * UNIT);
        int place = 16 * block + (lane >> 4) * 8 + (lane & 7), eight = 2 * part + (lane >> 3 & 1);
#pragma unroll
        for (int tap = 0; tap < 9; ++tap) {
          u32 a[4];
          load_turned_matrix(a, pixel(to, eight, place, tap / 3, tap % 3));
#pragma unroll
          for (int n = 0; n < 4; ++n)
            multiply_add(sum[tap][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
    wait_until_open_copies_are<0>();
    BARRIER();
#pragma unroll
    for (int i = 0; i < 144; i += 2) {
      int tap = i / 16, n = i / 4 % 4, half = i / 2 % 2;
      int row = 16 * part + (lane >> 2) + 8 * half, output = 8 * n + 2 * (lane & 3);
      u32 place = start + (share * NUMBERS + (tap * CHANNELS + row) * 32 + output) * 4;
      store_4_bytes(place, as_bits(sum[tap][n][2 * half]));
      store_4_bytes(place + 4, as_bits(sum[tap][n][2 * half + 1]));
    }
    BARRIER();
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
      for (int j = 0; j < 4; ++j) out[(u64)blockIdx.x * NUMBERS + 4 * i + j] = total[j];
    }
  }
};
__device__ __forceinline__ int images_of_block(int count) {
  return (int)blockIdx.x < count ? (count - 1 - (int)blockIdx.x) / (int)gridDim.x + 1 : 0;
}

// Of the first convolution. `cut`: [count][41][42][32], `parts`: [blocks][9][16][32].
using FirstSums = Sums<224, 7, 3, (2 * BAND_ROWS + 1) * ROW_BYTES, HALF>;
__device__ __forceinline__ u32 band_plane(int row_odd, int column_odd, int eight) {
  int plane = 2 * column_odd + eight;
  int rows = row_odd ? 4 * (BAND_ROWS + 1) + plane * BAND_ROWS : plane * (BAND_ROWS + 1);
  return (u32)(rows * HALF * UNIT);
}
extern "C" __global__ void __launch_bounds__(FirstSums::THREADS, 1)
    first_weight_gradient(const unsigned char* images, const long long* sample,
                          const long long* origins, const unsigned char* cut, float* parts, int count,
                          int height, int width) {
  auto copy = [&](int n, int band, int rows, u32 to, int thread) {
    u64 row = (u64)(sample[n] * height + origins[2 * n] + 2 * BAND_ROWS * band);
    const unsigned char* from = images + (row * width + origins[2 * n + 1]) * INPUT_BYTES;
    for (int i = thread; i < (2 * rows + 1) * (2 * CROP); i += FirstSums::THREADS) {
      int y = i / (2 * CROP), unit = i % (2 * CROP), column = unit >> 1;
      u32 plane = to + band_plane(y & 1, column & 1, unit & 1);
      copy_16_bytes(plane + ((y >> 1) * HALF + (column >> 1)) * UNIT,
                    from + (u64)y * width * INPUT_BYTES + UNIT * unit);
    }
  };
  auto pixel = [&](u32 to, int eight, int place, int dy, int dx) {
    return to + band_plane(dy & 1, dx & 1, eight) + (place + dy / 2 * HALF + dx / 2) * UNIT;
  };
  FirstSums::run(shared_start(), 6, SIDE1 - 5 * BAND_ROWS, images_of_block(count), copy, cut,
                 (u64)SIDE1 * HALF * PIXEL_BYTES, HALF, pixel, parts);
}

// Of a later one, from SIDE x SIDE inputs. `inputs`: [count][SIDE][SIDE + 1][32].
template <int SIDE>
__device__ __forceinline__ void later_sums(u32 start, const unsigned char* inputs,
                                           const unsigned char* cut, float* parts, int count) {
  constexpr int WIDTH = SIDE + 1, PLANE = (BAND_ROWS + 2) * WIDTH;
  using LaterSums = Sums<256, 4, 4, PLANE * PIXEL_BYTES, WIDTH>;
  auto copy = [&](int n, int band, int rows, u32 to, int thread) {
    const unsigned char* from = inputs + ((u64)n * SIDE + BAND_ROWS * band) * WIDTH * PIXEL_BYTES;
    for (int i = thread; i < (rows + 2) * WIDTH * 4; i += LaterSums::THREADS)
      copy_16_bytes(to + ((i & 3) * PLANE + (i >> 2)) * UNIT, from + UNIT * i);
  };
  auto pixel = [&](u32 to, int eight, int place, int dy, int dx) {
    return to + (eight * PLANE + place + dy * WIDTH + dx) * UNIT;
  };
  LaterSums::run(start, 5, SIDE - 2 - 4 * BAND_ROWS, images_of_block(count), copy, cut,
                 (u64)(SIDE - 2) * (SIDE - 1) * PIXEL_BYTES, SIDE - 1, pixel, parts);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    later_weight_gradients(const unsigned char* results_1, const unsigned char* results_2,
                           const unsigned char* results_3, const unsigned char* cut_2,
                           const unsigned char* cut_3, const unsigned char* cut_4, float* parts_2,
                           float* parts_3, float* parts_4, int count) {
  u32 start = shared_start();
  later_sums<SIDE1>(start, results_1, cut_2, parts_2, count);
  later_sums<SIDE2>(start, results_2, cut_3, parts_3, count);
  later_sums<SIDE3>(start, results_3, cut_4, parts_4, count);
}
