// The encoder's four convolutions in one kernel: a block keeps an image in shared memory from its
// pixels to its features. Three more kernels go the way back.
//
// 84 x 84 pixels of nine channels (packed frames, read at the corner of a crop) become 41 x 41,
// 39 x 39, 37 x 37 and 35 x 35 pixels of 32 channels, each with bias and ReLU, in bfloat16 with
// float32 sums. Every convolution is a sum of matrix products, of 64 neighbouring pixels, 16 terms
// and 32 outputs each (wgmma.m64n32k16, by four warps). The terms are twice eight: from the second
// convolution on, 16 channels under one tap. In the first they are eight channels under one tap and
// under the next, and the ninth channel under eight taps, which lie side by side in packed frames.
//
// An image lies in shared memory as planes of eight channels, 16 bytes a pixel, row after row. So
// the pixels under a tap are those under the first tap, some places further on, also where a row
// ends: two results there belong to no pixel and are left out. In global memory, packed frames and
// what is kept for the way back lie in planes too, and the copy engine moves whole pieces of them
// while all threads compute.
//
// Shared memory:   a: results of convolution 1, then of 3    b: rows of pixels, then results of 2
//                  w: in front the weights of 1, then a part of those of 3; behind, the weights of 2,
//                  then the others of 3; those of 4 lie behind the results of 3

typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef CCLF_PRIMITIVES
__device__ __forceinline__ u32 shared_start() {
  extern __shared__ __align__(128) unsigned char memory[];
  return (u32)__cvta_generic_to_shared(memory);
}
// 16 x 16 numbers of a warp, turned: lane l names row l % 16 of what is stored, its first or its last
// eight columns, and rows become columns.
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
// sum (+)= a b of four warps: both in shared memory, each named by where its first 16 bytes lie, and
// how far it is from there to the next eight terms and to the next eight rows.
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
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until `d` is known: the sum of all products that were ended, but for the last LEFT sums.
template <int LEFT> __device__ __forceinline__ void wait_for_products(float (&d)[16]) {
  asm volatile("wgmma.wait_group.sync.aligned %16;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                 "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
                 "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
               : "n"(LEFT)
               : "memory");
}
// What this thread wrote to shared memory can be read by products and copies after the next barrier.
__device__ __forceinline__ void show_to_products_and_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// An arrival, 8 bytes in shared memory: it is over when so many threads have arrived and all bytes that
// they expect have come, and then begins anew. `turn` is 0, 1, 0, ... for its first, second, third
// time.
__device__ __forceinline__ void set_up_arrival(u32 arrival, u32 threads) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(arrival),
      "r"(threads)
      : "memory");
}
__device__ __forceinline__ void arrive(u32 arrival) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(arrival) : "memory");
}
// Arrives too. Bytes may come before they are expected.
__device__ __forceinline__ void expect_bytes(u32 arrival, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrival), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_for_arrival(u32 arrival, u32 turn) {
  u32 over;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(over)
        : "r"(arrival), "r"(turn)
        : "memory");
  } while (!over);
}
__device__ __forceinline__ void copy_in(u32 to, const void* from, u32 bytes, u32 arrival) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to),
      "l"(from), "r"(bytes), "r"(arrival)
      : "memory");
}
__device__ __forceinline__ void copy_out(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
// Until shared memory that this thread copies from may be written to.
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
__device__ __forceinline__ u32 rounded(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// The same number in all lanes, as the compiler then knows.
__device__ __forceinline__ int alike(int value) { return __shfl_sync(0xffffffffu, value, 0); }
// The same number. What is computed from it is computed where it is needed, and does not wait in
// registers.
__device__ __forceinline__ u32 anew(u32 value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ u32 from_lane(u32 value, int other) {
  return __shfl_xor_sync(0xffffffffu, value, other);
}
#define BARRIER() __syncthreads()
#endif

constexpr int THREADS = 512, GROUPS = THREADS / 128;  // of four warps each
constexpr int CROP = 84, SIDE1 = 41, SIDE2 = 39, SIDE3 = 37, SIDE4 = 35;
constexpr int UNIT = 16;               // bytes: eight channels of a pixel
constexpr int PIXEL_BYTES = 4 * UNIT;  // 32 channels
constexpr int STEP_BYTES = 16 * 32 * 2;  // weights of a product
constexpr int FIRST_STEPS = 6, FIRST_WEIGHT_BYTES = FIRST_STEPS * STEP_BYTES;
constexpr int STEPS = 18, WEIGHT_BYTES = STEPS * STEP_BYTES;  // of a later convolution
constexpr int FRONT_STEPS = 8, FRONT_BYTES = FRONT_STEPS * STEP_BYTES;  // that come early

// A few arrivals of as many threads, and the turn of each.
template <int COUNT, int ARRIVING = 1> struct Arrivals {
  static constexpr int BYTES = 64;
  static_assert(8 * COUNT <= BYTES, "they have room");
  u32 first, turns = 0;
  __device__ __forceinline__ u32 at(int i) const { return first + 8 * i; }
  __device__ __forceinline__ void set_up(int thread) const {
    if (thread < COUNT) set_up_arrival(at(thread), ARRIVING);
    show_to_products_and_copies();
    BARRIER();
  }
  __device__ __forceinline__ void wait(int i) {
    wait_for_arrival(at(i), turns >> i & 1);
    turns ^= 1u << i;
  }
};

// A matrix in shared memory, in units: its place, and the way to the next eight terms and rows.
__device__ __forceinline__ u64 matrix(u32 place, u32 next_terms) {
  constexpr u64 NEXT_ROWS = 8;
  return (u64)(place / UNIT) | (u64)(next_terms / UNIT) << 16 | NEXT_ROWS << 32;
}

// A crop of packed frames [frame][odd column][second eight numbers][row][half the columns][8]. The first
// eight numbers of a pixel are its channels but the ninth, the second eight are the ninth channel here
// and under the next seven taps of a 3 x 3 filter that begins here.
//
// Nothing is computed from the numbers of the crop before the first `line`: so nobody waits for them.
struct Crop {
  const unsigned char* images;
  u64 frame;
  int y, x, height, columns;
  __device__ __forceinline__ Crop(const unsigned char* images, const long long* sample,
                                  const long long* origins, int n, int height, int columns)
      : images(images), frame(sample[n]), y((int)origins[2 * n]), x((int)origins[2 * n + 1]),
        height(height), columns(columns) {}
  // Its pixels in one row whose column is even or odd in the crop, as far as they are neighbours.
  __device__ __forceinline__ const unsigned char* line(int row, int column_odd, int eight) const {
    int column = x + column_odd, plane = 2 * (column & 1) + eight;
    return images + (((4 * frame + plane) * height + y + row) * columns + (column >> 1)) * UNIT;
  }
};

// The pixels under ROWS rows of results of convolution 1, as lines of HALF pixels, where results two
// pixels apart are neighbours: even and odd rows and columns go to planes of their own. Of the ninth
// channel, the results need even rows and columns only: taps begin there, and the last tap of a filter
// is the first of the one a row and a column further.
constexpr int HALF = CROP / 2;
template <int ROWS> struct Band {
  enum { EVEN_EVEN, EVEN_ODD, NINTH, ODD_ODD, ODD_EVEN, PLANES };  // row, column
  static __device__ constexpr int lines(int rows) { return PLANES * rows + 3; }
  static constexpr int BYTES = lines(ROWS) * HALF * UNIT;
  // Odd rows are one fewer.
  static __device__ constexpr int line_of(int plane) {
    return plane * (ROWS + 1) - (plane > ODD_ODD ? 1 : 0);
  }
  // What one result is the sum of, eight terms each: where they lie, in units. Two are a product's 16:
  // the first has to lie before the second.
  static __device__ constexpr int terms(int number) {
    int dy = number / 3, dx = number % 3, further = HALF + 1;
    if (number == 9) return line_of(NINTH) * HALF;
    if (number == 10) return line_of(NINTH) * HALF + further;  // the first of them is the last tap
    if (number == 11) return line_of(ODD_ODD) * HALF;          // any pixels: their weight is zero
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
  // Pixels of `rows` rows of results, `first` and on: of 128 threads, each copies a line at most.
  static_assert(lines(ROWS) <= 128, "a line for each thread");
  static __device__ __forceinline__ void copy(const Crop& crop, int first, int rows, u32 to,
                                              u32 arrival, int worker) {
    if (worker >= lines(rows)) return;
    int pair = worker / PLANES, plane = worker % PLANES, row_odd = plane >= ODD_ODD;
    int column_odd = plane == EVEN_ODD || plane == ODD_ODD;
    copy_in(to + (line_of(plane) + pair) * HALF * UNIT,
            crop.line(2 * (first + pair) + row_odd, column_odd, plane == NINTH), HALF * UNIT, arrival);
  }
};

// Results of convolution 1 come in bands. Each group of four warps fills one buffer with pixels.
constexpr int BAND_ROWS = 6, BANDS = 7;
using Pixels = Band<BAND_ROWS>;
static_assert(Pixels::in_order(), "a product's first terms lie before the second");
static_assert(BAND_ROWS * HALF <= 64 * GROUPS, "a product of each group makes a band");
static_assert(SIDE1 > BAND_ROWS * (BANDS - 1) && SIDE1 <= BAND_ROWS * BANDS, "bands make all rows");
static_assert(GROUPS < BANDS && BANDS <= 2 * GROUPS, "a buffer is filled once or twice");
__device__ __forceinline__ int band_rows(int band) {
  return band < BANDS - 1 ? BAND_ROWS : SIDE1 - BAND_ROWS * (BANDS - 1);
}
constexpr int A_START = 0, A_BYTES = SIDE1 * SIDE1 * PIXEL_BYTES;
constexpr int B_START = A_BYTES, B_BYTES = SIDE2 * SIDE2 * PIXEL_BYTES;
constexpr int W_START = B_START + B_BYTES, ARRIVALS_START = W_START + FRONT_BYTES + WEIGHT_BYTES;
constexpr int LAST_WEIGHTS = SIDE3 * SIDE3 * PIXEL_BYTES;  // in a, behind the results of 3
static_assert(GROUPS * Pixels::BYTES <= B_BYTES, "the pixels fit in b");
static_assert(FIRST_WEIGHT_BYTES <= FRONT_BYTES, "the first weights fit in front");
static_assert(LAST_WEIGHTS + WEIGHT_BYTES <= A_BYTES, "the last weights fit in a");
static_assert(ARRIVALS_START + 2 * Arrivals<1>::BYTES <= 232448, "more than a block can have");

// Of one pixel, this lane has two outputs of each group of eight, `value`.
// Results that stay in shared memory, as planes.
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
// Results that leave for global memory, pixel after pixel; rows are one pixel longer there, zero.
struct Features {
  static constexpr int SIDE = SIDE4;
  uint4* out;
  __device__ __forceinline__ void store(int row, int column, u32 (&value)[4], int lane) const {
    turn(value, lane & 3);
    if (row >= SIDE || column >= SIDE) return;
    uint4* pixel = out + (row * (SIDE + 1) + column) * 4 + (lane & 3);
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

// Sums of 64 results each, number `first` and every `step`th on: `begin(sum, number)` begins products,
// and `end(sum, number)` finishes the results, while the products of the next ones are computed.
// `begin_first`: for the first one.
template <class BeginFirst, class Begin, class End>
__device__ __forceinline__ void overlapped(int first, int step, int count, const BeginFirst& begin_first,
                                           const Begin& begin, const End& end) {
  float sum[16], next[16];
  begin_first(sum, first);
#pragma unroll 1
  for (int i = first;; i += 2 * step) {
    if (i + step >= count) {
      wait_for_products<0>(sum);
      end(sum, i);
      return;
    }
    begin(next, i + step);
    wait_for_products<1>(sum);
    end(sum, i);
    if (i + 2 * step >= count) {
      wait_for_products<0>(next);
      end(next, i + step);
      return;
    }
    begin(sum, i + 2 * step);
    wait_for_products<1>(next);
    end(next, i + step);
  }
}

// Of convolution 1, begins 64 sums for the pixel at `from` and on.
__device__ __forceinline__ void begin_first_steps(float (&sum)[16], u32 from, u32 weights) {
  u64 factors = matrix(weights, STEP_BYTES / 2);
  begin_products();
#pragma unroll
  for (int step = 0; step < FIRST_STEPS; ++step)
    multiply_add(sum, matrix(from + Pixels::terms(2 * step) * UNIT, Pixels::to_second(step) * UNIT),
                 factors + step * (STEP_BYTES / UNIT), step > 0);
  end_products();
}

// Begins a 3 x 3 convolution over 32 channels, of SIDE x SIDE pixels in planes: 64 sums, for the pixel
// at `from` and on, over the steps FIRST to LAST - 1.
template <int SIDE, int FIRST = 0, int LAST = STEPS>
__device__ __forceinline__ void begin_steps(float (&sum)[16], u32 from, u32 weights) {
  constexpr int PLANE = SIDE * SIDE;
  u64 factors = matrix(weights, STEP_BYTES / 2), pixels = matrix(from, PLANE * UNIT);
  begin_products();
#pragma unroll
  for (int step = FIRST; step < LAST; ++step) {
    int tap = step / 2, part = step % 2;
    int further = 2 * part * PLANE + tap / 3 * SIDE + tap % 3;
    multiply_add(sum, pixels + further, factors + step * (STEP_BYTES / UNIT), step > 0);
  }
  end_products();
}

// A later convolution forward, of pixels at `from`, with `before(tile)` before 64 neighbouring results
// are begun. Of the weights, THERE steps are there, and the others after `wait()`.
struct Nothing {
  __device__ __forceinline__ void operator()() const {}
  __device__ __forceinline__ void operator()(int) const {}
};
template <int SIDE, int THERE, class Results, class Wait, class Before>
__device__ __forceinline__ void convolve_and_cut(u32 from, u32 weights, const float* all_bias,
                                                 const Results& results, int warp, int lane,
                                                 const Wait& wait, const Before& before) {
  constexpr int TILES = ((SIDE - 2) * SIDE + 63) / 64;
  float bias[8];
  load_bias(bias, all_bias, lane);
  auto begin = [&](float(&sum)[16], int tile) {
    before(tile);
    begin_steps<SIDE>(sum, from + tile * 64 * UNIT, anew(weights));
  };
  auto begin_first = [&](float(&sum)[16], int tile) {
    if (THERE == STEPS) return begin(sum, tile);
    u32 pixels = from + tile * 64 * UNIT;
    begin_steps<SIDE, 0, THERE>(sum, pixels, weights);
    wait_for_products<0>(sum);
    wait();
    begin_steps<SIDE, THERE>(sum, pixels, weights);
  };
  auto end = [&](const float(&sum)[16], int tile) {
    finish<SIDE>(sum, bias, tile * 64, 0, SIDE - 2, results, warp, lane);
  };
  overlapped(warp >> 2, GROUPS, TILES, begin_first, begin, end);
}

// Weights as `multiply_add` wants them, in steps of 16 terms, each [2][4][8 outputs][8 terms]: `first`
// has 6 steps, `later` 3 x 18. `bias`: [4][32]. KEEP: the planes of results 1 to 3 go to `kept_1` to
// `kept_3`.
template <bool KEEP>
__device__ __forceinline__ void encode(const unsigned char* images, const long long* sample,
                                       const long long* origins, const unsigned char* first,
                                       const unsigned char* later, const float* bias,
                                       uint4* features, unsigned char* kept_1, unsigned char* kept_2,
                                       unsigned char* kept_3, int count, int height, int columns) {
  u32 start = shared_start(), a = start + A_START, b = start + B_START, w = start + W_START;
  int thread = threadIdx.x, warp = alike(thread / 32), lane = thread % 32;
  int group = warp >> 2, worker = lane * 4 + (warp & 3);  // in a group: neighbours in different warps
  enum { FRONT = GROUPS, BEHIND, THE_LAST_WEIGHTS, ALL };  // after those of the buffers
  Arrivals<ALL> arrivals{start + ARRIVALS_START};
  Arrivals<BANDS - GROUPS, THREADS / 32> used{start + ARRIVALS_START + arrivals.BYTES};
  arrivals.set_up(thread);
  used.set_up(thread);

  // A group copies to its own buffer. A warp needs 60 cycles to start a copy.
  auto copy_band = [&](const Crop& crop, int band) {
    u32 arrival = arrivals.at(group);
    int rows = band_rows(band);
    if (worker == 0) expect_bytes(arrival, Pixels::lines(rows) * HALF * UNIT);
    Pixels::copy(crop, BAND_ROWS * band, rows, b + group * Pixels::BYTES, arrival, worker);
  };
  // One thread copies weights for all.
  auto copy_weights = [&](u32 to, const unsigned char* from, int steps, int arrival) {
    if (thread > 0) return;
    expect_bytes(arrivals.at(arrival), steps * STEP_BYTES);
    copy_in(to, from, steps * STEP_BYTES, arrivals.at(arrival));
  };
  u32 w_behind = w + FRONT_BYTES;
  auto copy_first_two = [&] {
    copy_weights(w, first, FIRST_STEPS, FRONT);
    copy_weights(w_behind, later, STEPS, BEHIND);
  };
  const unsigned char* third = later + WEIGHT_BYTES;
  auto crop_of = [&](int n) {
    return Crop(images, sample, origins, n < count ? n : 0, height, columns);
  };
  auto everybody_sees = [&] {
    show_to_products_and_copies();
    BARRIER();
  };
  auto keep = [&](unsigned char* to, u32 from, int side, int n) {
    u32 bytes = side * side * PIXEL_BYTES;
    if (KEEP && thread == 0) copy_out(to + (u64)n * bytes, from, bytes);
  };
  auto has_been_kept = [&] {
    if (KEEP && thread == 0) wait_for_copies_out();
  };

  if ((int)blockIdx.x >= count) return;
  Nothing nothing;
  Crop next = crop_of(blockIdx.x);
  copy_first_two();
  copy_band(next, group);
  for (int n = blockIdx.x; n < count; n += gridDim.x) {
    bool another = n + (int)gridDim.x < count;
    Crop crop = next;
    next = crop_of(n + gridDim.x);
    float first_bias[8];
    load_bias(first_bias, bias, lane);
    arrivals.wait(FRONT);
    auto begin_band = [&](float(&sum)[16], int band) {
      int buffer = band % GROUPS;
      arrivals.wait(buffer);
      begin_first_steps(sum, b + buffer * Pixels::BYTES + group * 64 * UNIT, anew(w));
    };
    auto end_band = [&](const float(&sum)[16], int band) {
      bool refill = band + GROUPS < BANDS;
      if (refill && lane == 0) arrive(used.at(band));
      finish<HALF>(sum, first_bias, group * 64, BAND_ROWS * band, band_rows(band), Planes<SIDE1>{a},
                   warp, lane);
      if (refill && band == group) {
        used.wait(band);
        copy_band(crop, band + GROUPS);
      }
    };
    overlapped(0, 1, BANDS, begin_band, begin_band, end_band);
    everybody_sees();
    copy_weights(w, third, FRONT_STEPS, FRONT);
    keep(kept_1, a, SIDE1, n);
    arrivals.wait(BEHIND);
    convolve_and_cut<SIDE1, STEPS>(a, w_behind, bias + 32, Planes<SIDE2>{b}, warp, lane, nothing,
                                   nothing);
    has_been_kept();
    everybody_sees();
    copy_weights(w_behind, third + FRONT_BYTES, STEPS - FRONT_STEPS, BEHIND);
    copy_weights(a + LAST_WEIGHTS, later + 2 * WEIGHT_BYTES, STEPS, THE_LAST_WEIGHTS);
    keep(kept_2, b, SIDE2, n);
    arrivals.wait(FRONT);
    convolve_and_cut<SIDE2, FRONT_STEPS>(b, w, bias + 64, Planes<SIDE3>{a}, warp, lane,
                                         [&] { arrivals.wait(BEHIND); }, nothing);
    has_been_kept();
    everybody_sees();
    keep(kept_3, a, SIDE3, n);
    if (another) copy_first_two();
    arrivals.wait(THE_LAST_WEIGHTS);
    Features results{features + (u64)n * (SIDE4 * (SIDE4 + 1) * 4)};
    // One group after another starts the copies for the next image, while three compute.
    auto start_copies = [&](int tile) {
      if (another && tile / GROUPS == group) copy_band(next, group);
    };
    convolve_and_cut<SIDE3, STEPS>(a, a + LAST_WEIGHTS, bias + 96, results, warp, lane, nothing,
                                   start_copies);
    has_been_kept();
    BARRIER();
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

// Backward through the last three convolutions: a block keeps the gradient of an image on the chip
// from the features to the results of convolution 1, cuts it at every ReLU and sums it for the biases.
//
// The gradient of a convolution's SIDE - 2 rows and columns lies in rows of SIDE pixels, with zeros
// where there are none: two columns behind, two rows above and below, which the planes share. So the
// gradient of its SIDE x SIDE inputs is a convolution again, with every weight turned about.
//
// Shared memory:   x: gradient of 4, then of 2    y: of the features as they come, then of 3    w: weights

// Places of a plane that the sums for a weight read at a time: a fifth of all, in blocks of 16.
constexpr int CHUNKS = 5;
__device__ constexpr int chunk_of(int side) {
  return ((side - 2) * side + 16 * CHUNKS - 1) / (16 * CHUNKS) * 16;
}

template <int SIDE> struct Padded {
  static constexpr int PLANE = SIDE * SIDE, BYTES = (2 + 4 * PLANE + 2 * SIDE) * UNIT;
  static constexpr int LEAVING = CHUNKS * chunk_of(SIDE);  // places of a plane in global memory
  static_assert(LEAVING <= SIDE * SIDE, "zeros follow, up to the next plane");
  static __device__ __forceinline__ u32 place(int group, int row, int column) {
    return (u32)(2 + group * PLANE + (row + 2) * SIDE + column) * UNIT;
  }
  u32 at;
  __device__ __forceinline__ void store(int row, int column, int group, const u32 (&value)[4]) const {
    store_16_bytes(at + place(group, row, column), value[0], value[1], value[2], value[3]);
  }
  // Zeros around what will be stored.
  __device__ __forceinline__ void clear(int thread) const {
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
  // Rows with their zeros behind, of image n.
  __device__ __forceinline__ void leave(unsigned char* out, int n, int thread) const {
    u32 bytes = LEAVING * UNIT;
    if (thread < 4) copy_out(out + ((u64)n * 4 + thread) * bytes, at + place(thread, 0, 0), bytes);
  }
};
constexpr int X_BYTES = Padded<SIDE1>::BYTES, Y_BYTES = Padded<SIDE2>::BYTES;
constexpr int X_START = 0, Y_START = X_BYTES, BACK_WEIGHTS = X_BYTES + Y_BYTES;
constexpr int BACK_ARRIVALS = BACK_WEIGHTS + WEIGHT_BYTES;
constexpr int FEATURE_UNITS = SIDE4 * (SIDE4 + 1) * 4;
static_assert(Padded<SIDE3>::BYTES <= X_BYTES && FEATURE_UNITS * UNIT <= Y_BYTES, "they fit");

// The gradient of the results of 1 in global memory: rows of HALF places, the last one zero, and zeros
// behind up to a multiple of 16.
struct FirstGradient {
  static constexpr int LEAVING = (SIDE1 * HALF + 15) / 16 * 16, BEHIND = LEAVING - SIDE1 * HALF;
  uint4* out;
  __device__ __forceinline__ void store(int row, int column, int group, const u32 (&value)[4]) const {
    uint4* pixel = out + group * LEAVING + row * HALF + column;
    *pixel = make_uint4(value[0], value[1], value[2], value[3]);
    if (column == SIDE1 - 1) pixel[1] = make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void clear_behind(int thread) const {
    if (thread < 4 * BEHIND)
      out[thread / BEHIND * LEAVING + SIDE1 * HALF + thread % BEHIND] = make_uint4(0, 0, 0, 0);
  }
};

// What a block finds out: sums for the first weight, the later ones and the biases.
constexpr int FIRST_NUMBERS = FIRST_STEPS * 16 * 32, LATER_NUMBERS = 9 * 32 * 32;
constexpr int BIAS_NUMBERS = FIRST_NUMBERS + 3 * LATER_NUMBERS;  // before those of the biases
constexpr int ALL_NUMBERS = BIAS_NUMBERS + 4 * 32;
__device__ __forceinline__ float* found_by_block(float* parts) {
  return parts + (u64)blockIdx.x * ALL_NUMBERS;
}

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
// Lanes 4 apart have sums of the same eight outputs: of those over all of them, this lane's one.
__device__ __forceinline__ int output_of(int lane) { return 8 * (lane & 3) + (lane >> 2); }
__device__ __forceinline__ float add_up(float (&total)[8], int lane) {
  float mine = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int other = 4; other < 32; other *= 2)
      total[i] += as_float(from_lane(as_bits(total[i]), other));
    mine = lane >> 2 == i ? total[i] : mine;
  }
  return mine;
}

// Of SIDE x SIDE results in planes: from the gradient at `from` the one before, cut where `results`
// are zero, to `to`. Returns its sum over the pixels.
template <int SIDE, class To>
__device__ __forceinline__ float go_back(u32 from, u32 weights, const uint4* results, int warp, int lane,
                                         const To& to) {
  float total[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  int group = lane & 3;
  uint4 reached[2];
  auto place_of = [&](int begin, int half) {
    return begin + (warp & 3) * 16 + 8 * half + (lane >> 2);
  };
  for (int tile = warp >> 2; tile * 64 < SIDE * SIDE; tile += GROUPS) {
    float sum[16];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int place = place_of(tile * 64, half);
      if (place < SIDE * SIDE) reached[half] = results[group * SIDE * SIDE + place];
    }
    begin_steps<SIDE>(sum, from + tile * 64 * UNIT, weights);
    wait_for_products<0>(sum);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int place = place_of(tile * 64, half);
      u32 value[4];
#pragma unroll
      for (int n = 0; n < 4; ++n)
        value[n] = rounded(sum[4 * n + 2 * half], sum[4 * n + 2 * half + 1]);
      turn(value, group);
      if (place >= SIDE * SIDE) continue;
      cut(value, reached[half], total);
      to.store(place / SIDE, place % SIDE, group, value);
    }
  }
  return add_up(total, lane);
}

// The gradient of the features at `from`, cut where they are zero. Returns its sum over the pixels.
__device__ __forceinline__ float cut_features(u32 from, const uint4* features,
                                              const Padded<SIDE3>& to, int thread) {
  constexpr int AT_ONCE = 5;
  float total[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (int begin = thread; begin < FEATURE_UNITS; begin += AT_ONCE * THREADS) {
    uint4 reached[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j)
      if (begin + j * THREADS < FEATURE_UNITS) reached[j] = features[begin + j * THREADS];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      int i = begin + j * THREADS, row = (i >> 2) / (SIDE4 + 1), column = (i >> 2) % (SIDE4 + 1);
      if (i >= FEATURE_UNITS || column == SIDE4) continue;
      u32 value[4];
      load_16_bytes(value, from + i * UNIT);
      cut(value, reached[j], total);
      to.store(row, column, i & 3, value);
    }
  }
  return add_up(total, thread % 32);
}

// `gradient` and `results_4`: [count][35][36][32]; `results_1` to `results_3` in planes; `later`:
// weights of 4, 3, 2 in this order, turned about, as steps. Cut gradients go to `cut_1` to `cut_4` in
// planes, sums for the biases to `parts`.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gradients(const unsigned char* gradient, const uint4* results_1, const uint4* results_2,
              const uint4* results_3, const uint4* results_4, const unsigned char* later, uint4* cut_1,
              unsigned char* cut_2, unsigned char* cut_3, unsigned char* cut_4, float* parts,
              int count) {
  u32 start = shared_start(), x = start + X_START, y = start + Y_START;
  u32 w = start + BACK_WEIGHTS;
  int thread = threadIdx.x, warp = alike(thread / 32), lane = thread % 32;
  enum { FEATURES, WEIGHTS };
  Arrivals<2> arrivals{start + BACK_ARRIVALS};
  arrivals.set_up(thread);
  float sums[4] = {0, 0, 0, 0};  // for the biases

  auto copy = [&](int arrival, u32 to, const unsigned char* from, u32 bytes) {
    if (thread > 0) return;
    expect_bytes(arrivals.at(arrival), bytes);
    copy_in(to, from, bytes, arrivals.at(arrival));
  };
  auto begin_image = [&](int n) {
    copy(FEATURES, y, gradient + (u64)n * FEATURE_UNITS * UNIT, FEATURE_UNITS * UNIT);
  };
  auto copy_weights = [&](int number) {
    copy(WEIGHTS, w, later + number * WEIGHT_BYTES, WEIGHT_BYTES);
  };
  auto everybody_sees = [&] {
    if (thread < 4) wait_for_copies_out();
    show_to_products_and_copies();
    BARRIER();
  };

  if ((int)blockIdx.x < count) begin_image(blockIdx.x);
  for (int n = blockIdx.x; n < count; n += gridDim.x) {
    copy_weights(0);
    Padded<SIDE3> fourth{x};
    Padded<SIDE2> third{y};
    Padded<SIDE1> second{x};
    FirstGradient first{cut_1 + (u64)n * (4 * FirstGradient::LEAVING)};
    fourth.clear(thread);
    arrivals.wait(FEATURES);
    sums[3] += cut_features(y, results_4 + (u64)n * FEATURE_UNITS, fourth, thread);
    everybody_sees();
    fourth.leave(cut_4, n, thread);
    third.clear(thread);
    arrivals.wait(WEIGHTS);
    sums[2] += go_back<SIDE3>(x, w, results_3 + (u64)n * (SIDE3 * SIDE3 * 4), warp, lane, third);
    everybody_sees();
    copy_weights(1);
    third.leave(cut_3, n, thread);
    second.clear(thread);
    arrivals.wait(WEIGHTS);
    sums[1] += go_back<SIDE2>(y, w, results_2 + (u64)n * (SIDE2 * SIDE2 * 4), warp, lane, second);
    everybody_sees();
    copy_weights(2);
    second.leave(cut_2, n, thread);
    if (n + (int)gridDim.x < count) begin_image(n + gridDim.x);
    first.clear_behind(thread);
    arrivals.wait(WEIGHTS);
    sums[0] += go_back<SIDE1>(x, w, results_1 + (u64)n * (SIDE1 * SIDE1 * 4), warp, lane, first);
    everybody_sees();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store_4_bytes(y + ((warp * 4 + i) * 32 + output_of(lane)) * 4, as_bits(sums[i]));
  BARRIER();
  if (thread < 32) {
    float total[4] = {0, 0, 0, 0};
    for (int other = 0; other < THREADS / 32; ++other) {
      u32 found[4];
      load_16_bytes(found, y + (other * 32 + thread) * UNIT);
#pragma unroll
      for (int j = 0; j < 4; ++j) total[j] += as_float(found[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) found_by_block(parts)[BIAS_NUMBERS + 4 * thread + j] = total[j];
  }
}

// Gradients of the weights: for each step of 16 terms the pixels, turned, times the cut gradient of the
// results. Pieces of both are copied while those before are multiplied. Each warp sums over its share
// of the places of all images of a block, for its part of the terms; the shares are added at the end,
// in one order.
template <int THREADS_, int SHARES_, int STAGES_, int STEPS_, int PIXELS_BYTES_, int PLACES_>
struct Sums {
  static constexpr int THREADS = THREADS_, SHARES = SHARES_, STAGES = STAGES_, PLACES = PLACES_;
  static constexpr int WARPS = THREADS / 32, PARTS = WARPS / SHARES, STEPS = STEPS_;
  static constexpr int TERMS = 16 * PARTS;  // in a step of all parts
  static constexpr int PIXELS_BYTES = PIXELS_BYTES_, NUMBERS = STEPS * TERMS * 32;
  static constexpr int STAGE = PIXELS_BYTES + PLACES * PIXEL_BYTES, BYTES = STAGES * STAGE;
  static_assert(SHARES * NUMBERS * 4 <= BYTES, "the sums of all warps fit");

  // Of `images` images in `pieces` pieces, `copy(n, piece, to, arrival, worker)` copies one by all
  // threads, neighbours in different warps: pixels to `to`, where eight terms of a step and a place are
  // `pixel(to, step, eight, place)`, and PIXELS_BYTES further the cut gradient, planes of PLACES.
  // `blocks(piece)`: how often 16 places.
  template <class Copy, class Blocks, class Pixel>
  static __device__ __forceinline__ void run(u32 start, Arrivals<STAGES>& arrivals, int pieces,
                                             int images, const Copy& copy, const Blocks& blocks,
                                             const Pixel& pixel, float* out) {
    int thread = threadIdx.x, warp = alike(thread / 32), lane = thread % 32;
    int share = warp % SHARES, part = warp / SHARES, numbers = images * pieces;
    auto begin = [&](int number) {
      if (number < numbers)
        copy(blockIdx.x + number / pieces * gridDim.x, number % pieces,
             start + number % STAGES * STAGE, arrivals.at(number % STAGES), lane * WARPS + warp);
    };
    float sum[STEPS][4][4];
#pragma unroll
    for (int i = 0; i < STEPS * 16; ++i) sum[i / 16][i / 4 % 4][i % 4] = 0.0f;
    BARRIER();
    for (int i = thread; i < BYTES / UNIT; i += THREADS)  // where nothing is copied to, and no NaN
      store_16_bytes(start + i * UNIT, 0, 0, 0, 0);
    show_to_products_and_copies();
    BARRIER();
    for (int number = 0; number < STAGES - 1; ++number) begin(number);
#pragma unroll 1
    for (int number = 0; number < numbers; ++number) {
      BARRIER();
      begin(number + STAGES - 1);
      arrivals.wait(number % STAGES);
      u32 to = start + number % STAGES * STAGE, slopes = to + PIXELS_BYTES;
      int count = blocks(number % pieces);
#pragma unroll 1
      for (int block = share; block < count; block += SHARES) {
        u32 b[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j)
          load_turned_matrix(
              b[j], slopes + ((2 * j + (lane >> 4)) * PLACES + 16 * block + (lane & 15)) * UNIT);
        int place = 16 * block + (lane >> 4) * 8 + (lane & 7), eight = 2 * part + (lane >> 3 & 1);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          u32 a[4];
          load_turned_matrix(a, pixel(to, step, eight, place));
#pragma unroll
          for (int n = 0; n < 4; ++n)
            multiply_add(sum[step][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
    BARRIER();
#pragma unroll
    for (int i = 0; i < STEPS * 16; i += 2) {
      int step = i / 16, n = i / 4 % 4, half = i / 2 % 2;
      int row = 16 * part + (lane >> 2) + 8 * half, output = 8 * n + 2 * (lane & 3);
      u32 place = start + (share * NUMBERS + (step * TERMS + row) * 32 + output) * 4;
      store_4_bytes(place, as_bits(sum[step][n][2 * half]));
      store_4_bytes(place + 4, as_bits(sum[step][n][2 * half + 1]));
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
      for (int j = 0; j < 4; ++j) out[4 * i + j] = total[j];
    }
  }
};
__device__ __forceinline__ int images_of_block(int count) {
  return (int)blockIdx.x < count ? (count - 1 - (int)blockIdx.x) / (int)gridDim.x + 1 : 0;
}

// Of the first convolution, in bands of eight rows. `cut`: planes of FirstGradient::LEAVING places.
constexpr int SUM_ROWS = 8, SUM_BANDS = 6;
using SumPixels = Band<SUM_ROWS>;
using FirstSums = Sums<224, 7, 4, FIRST_STEPS, SumPixels::BYTES, SUM_ROWS * HALF>;
static_assert(FIRST_NUMBERS == FirstSums::NUMBERS, "where those of the later ones begin");
extern "C" __global__ void __launch_bounds__(FirstSums::THREADS, 1)
    first_weight_gradient(const unsigned char* images, const long long* sample,
                          const long long* origins, const unsigned char* cut, float* parts, int count,
                          int height, int columns) {
  u32 start = shared_start();
  Arrivals<FirstSums::STAGES> arrivals{start + FirstSums::BYTES};
  arrivals.set_up(threadIdx.x);
  auto rows_of = [&](int band) { return band < SUM_BANDS - 1 ? SUM_ROWS : SIDE1 - 5 * SUM_ROWS; };
  auto blocks = [&](int band) { return (rows_of(band) * HALF + 15) / 16; };
  auto copy = [&](int n, int band, u32 to, u32 arrival, int worker) {
    int rows = rows_of(band);
    u32 bytes = blocks(band) * 16 * UNIT;
    if (worker == 0) expect_bytes(arrival, SumPixels::lines(rows) * HALF * UNIT + 4 * bytes);
    if (worker < 4)
      copy_in(to + FirstSums::PIXELS_BYTES + worker * FirstSums::PLACES * UNIT,
              cut + (((u64)n * 4 + worker) * FirstGradient::LEAVING + band * FirstSums::PLACES) * UNIT,
              bytes, arrival);
    SumPixels::copy(Crop(images, sample, origins, n, height, columns), SUM_ROWS * band, rows, to,
                    arrival, worker);
  };
  auto pixel = [&](u32 to, int step, int eight, int place) {
    return to + (SumPixels::terms(2 * step) + eight * SumPixels::to_second(step) + place) * UNIT;
  };
  FirstSums::run(start, arrivals, SUM_BANDS, images_of_block(count), copy, blocks, pixel,
                 found_by_block(parts));
}

// Of a later one, from SIDE x SIDE inputs in planes. `cut`: planes of CHUNKS pieces.
constexpr int STAGES = 4;
template <int SIDE> struct LaterSums {
  static constexpr int CHUNK = chunk_of(SIDE), PLANE = CHUNK + 2 * SIDE + 2;
  using All = Sums<256, 4, STAGES, 9, PLANE * PIXEL_BYTES, CHUNK>;
  static __device__ __forceinline__ void run(u32 start, Arrivals<STAGES>& arrivals,
                                             const unsigned char* inputs, const unsigned char* cut,
                                             float* out, int count) {
    auto copy = [&](int n, int chunk, u32 to, u32 arrival, int worker) {
      int first = chunk * CHUNK, left = SIDE * SIDE - first, pixels = left < PLANE ? left : PLANE;
      u64 plane = (u64)n * 4 + (worker & 3);
      if (worker == 0) expect_bytes(arrival, 4 * (pixels + CHUNK) * UNIT);
      if (worker < 4)
        copy_in(to + worker * PLANE * UNIT, inputs + (plane * SIDE * SIDE + first) * UNIT,
                pixels * UNIT, arrival);
      else if (worker < 8)
        copy_in(to + All::PIXELS_BYTES + (worker & 3) * CHUNK * UNIT,
                cut + (plane * CHUNKS * CHUNK + first) * UNIT, CHUNK * UNIT, arrival);
    };
    auto pixel = [&](u32 to, int tap, int eight, int place) {
      return to + (eight * PLANE + place + tap / 3 * SIDE + tap % 3) * UNIT;
    };
    All::run(start, arrivals, CHUNKS, images_of_block(count), copy, [](int) { return CHUNK / 16; },
             pixel, out);
  }
};
constexpr int LATER_BYTES = LaterSums<SIDE1>::All::BYTES;
static_assert(LaterSums<SIDE2>::All::BYTES <= LATER_BYTES, "the largest first");
extern "C" __global__ void __launch_bounds__(256, 1)
    later_weight_gradients(const unsigned char* results_1, const unsigned char* results_2,
                           const unsigned char* results_3, const unsigned char* cut_2,
                           const unsigned char* cut_3, const unsigned char* cut_4, float* parts,
                           int count) {
  u32 start = shared_start();
  float* out = found_by_block(parts) + FIRST_NUMBERS;
  Arrivals<STAGES> arrivals{start + LATER_BYTES};
  arrivals.set_up(threadIdx.x);
  LaterSums<SIDE1>::run(start, arrivals, results_1, cut_2, out, count);
  LaterSums<SIDE2>::run(start, arrivals, results_2, cut_3, out + LATER_NUMBERS, count);
  LaterSums<SIDE3>::run(start, arrivals, results_3, cut_4, out + 2 * LATER_NUMBERS, count);
}
