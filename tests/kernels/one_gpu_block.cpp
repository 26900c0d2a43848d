// Runs fused_encoder.cu on a CPU, block after block: its threads are fibers that meet where a GPU's
// threads do. A fiber that needs the others (a product of four warps, an exchange between lanes, a
// barrier) says so and rests until all of them have come.
//
// What a copy has not brought yet, and what nobody wrote, is NaN.

#include <math.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads, blocks)
struct uint4 { u32 x, y, z, w; };
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
struct Number { unsigned x; };
static Number threadIdx, blockIdx, gridDim;

enum Need { NOTHING, PRODUCT, SMALL_PRODUCT, MATRIX, TURNED_MATRIX, EXCHANGE, ALL_THREADS, END };
struct Copy { u32 to; const void* from; };
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Need need = NOTHING;
  float* sum;
  u32 a[4], b0, b1;  // a product's factors of this thread
  u64 b;             // or the matrix in shared memory
  int add, other;
  u32 value, address, found[4];
  std::vector<std::vector<Copy>> copies = {{}};  // by group; the last one is not closed
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int now;
static std::vector<unsigned char> shared;

static void refuse(const char* what) {
  fprintf(stderr, "thread %d: %s\n", now, what);
  abort();
}
static void rest_until(Need need) {
  fibers[now].need = need;
  swapcontext(&fibers[now].context, &scheduler);
}
static float from_bfloat16(uint16_t bits) {
  u32 wide = (u32)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}
static u32 to_bfloat16(float value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static unsigned char* place(u32 address, u32 bytes) {
  if (address % bytes || address + bytes > shared.size()) refuse("an address outside shared memory");
  return shared.data() + address;
}

#define CCLF_PRIMITIVES
static u32 shared_start() { return 0; }
static void load(u32 (&found)[4], u32 address, Need need) {
  fibers[now].address = address;
  rest_until(need);
  memcpy(found, fibers[now].found, 16);
}
static void load_matrix(u32 (&found)[4], u32 address) { load(found, address, MATRIX); }
static void load_turned_matrix(u32 (&found)[4], u32 address) { load(found, address, TURNED_MATRIX); }
static void multiply_add(float (&sum)[16], const u32 (&a)[4], u64 b, int add) {
  Fiber& fiber = fibers[now];
  memcpy(fiber.a, a, 16);
  fiber.sum = sum, fiber.b = b, fiber.add = add;
  rest_until(PRODUCT);
}
static void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  Fiber& fiber = fibers[now];
  memcpy(fiber.a, a, 16);
  fiber.sum = sum, fiber.b0 = b0, fiber.b1 = b1;
  rest_until(SMALL_PRODUCT);
}
static void begin_products() {}
static void end_of_products() {}
static void wait_for_products() {}
static void show_to_products() {}
static void copy_16_bytes(u32 to, const void* from) {
  if ((uint64_t)from % 16) refuse("a copy from a place that is no multiple of 16");
  memset(place(to, 16), 0xff, 16);
  fibers[now].copies.back().push_back({to, from});
}
static void end_of_copies() { fibers[now].copies.push_back({}); }
template <int N> static void wait_until_open_copies_are() {
  auto& groups = fibers[now].copies;
  while ((int)groups.size() - 1 > N) {
    for (auto& copy : groups[0]) memcpy(place(copy.to, 16), copy.from, 16);
    groups.erase(groups.begin());
  }
}
static void store_4_bytes(u32 to, u32 value) { memcpy(place(to, 4), &value, 4); }
static void store_16_bytes(u32 to, u32 a, u32 b, u32 c, u32 d) {
  u32 values[4] = {a, b, c, d};
  memcpy(place(to, 16), values, 16);
}
static void load_16_bytes(u32 (&values)[4], u32 from) { memcpy(values, place(from, 16), 16); }
static float as_float(u32 bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static u32 as_bits(float value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  return bits;
}
static u32 rounded(float low, float high) { return to_bfloat16(low) | to_bfloat16(high) << 16; }
static int alike(int value) { return value; }
static u32 from_lane(u32 value, int other) {
  fibers[now].value = value, fibers[now].other = other;
  rest_until(EXCHANGE);
  return fibers[now].value;
}
#define BARRIER() rest_until(ALL_THREADS)
#include KERNEL

// Row `row` and term `term` of a matrix by its description: see wgmma's matrix descriptor, no swizzle.
static float number(u64 matrix, int row, int term) {
  u32 first = (matrix & 0x3fff) * 16, next_terms = (matrix >> 16 & 0x3fff) * 16;
  u32 next_rows = (matrix >> 32 & 0x3fff) * 16;
  u32 at = first + row / 8 * next_rows + row % 8 * 16 + term / 8 * next_terms + term % 8 * 2;
  if (at + 2 > shared.size()) return 0.0f / 0.0f;  // behind the last pixel
  uint16_t bits;
  memcpy(&bits, shared.data() + at, 2);
  return from_bfloat16(bits);
}
// The 16 x 16 numbers that the lanes of a warp have in their registers.
static void gather(const Fiber* warp, float (*a)[16]) {
  for (int i = 0; i < 32 * 8; ++i) {
    int lane = i / 8, j = i % 8;  // two in each register: rows 0, 8, 0, 8, terms 0, 0, 8, 8 further
    int row = lane / 4 + 8 * (j / 2 % 2), term = 2 * (lane % 4) + 8 * (j / 4) + j % 2;
    a[row][term] = from_bfloat16(warp[lane].a[j / 2] >> 16 * (j % 2) & 0xffff);
  }
}
static void multiply(Fiber* group) {
  for (int i = 1; i < 128; ++i)
    if (group[i].need != PRODUCT || group[i].b != group[0].b)
      refuse("four warps do not multiply the same");
  static float a[64][16], b[32][16];
  for (int warp = 0; warp < 4; ++warp) gather(group + 32 * warp, a + 16 * warp);
  for (int row = 0; row < 32; ++row)
    for (int term = 0; term < 16; ++term) b[row][term] = number(group[0].b, row, term);
  for (int i = 0; i < 128; ++i) {
    for (int j = 0; j < 16; ++j) {
      int row = 16 * (i / 32) + i % 32 / 4 + 8 * (j / 2 % 2), output = 8 * (j / 4) + 2 * (i % 4) + j % 2;
      float sum = group[i].add ? group[i].sum[j] : 0.0f;
      for (int term = 0; term < 16; ++term) sum += a[row][term] * b[output][term];
      group[i].sum[j] = sum;
    }
    group[i].need = NOTHING;
  }
}
static void all_lanes(const Fiber* warp) {
  for (int lane = 1; lane < 32; ++lane)
    if (warp[lane].need != warp[0].need) refuse("lanes of a warp do not do the same");
}
static void multiply_small(Fiber* warp) {
  static float a[16][16], b[8][16];
  gather(warp, a);
  for (int i = 0; i < 32 * 4; ++i) {
    int lane = i / 4, j = i % 4;
    u32 bits = j / 2 ? warp[lane].b1 : warp[lane].b0;
    b[lane / 4][2 * (lane % 4) + 8 * (j / 2) + j % 2] = from_bfloat16(bits >> 16 * (j % 2) & 0xffff);
  }
  for (int i = 0; i < 32 * 4; ++i) {
    int lane = i / 4, j = i % 4, row = lane / 4 + 8 * (j / 2), output = 2 * (lane % 4) + j % 2;
    for (int term = 0; term < 16; ++term) warp[lane].sum[j] += a[row][term] * b[output][term];
  }
}
// Four matrices of 8 x 8: lane 8 m + r named row r of matrix m.
static void load_matrices(Fiber* warp, bool turned) {
  for (int i = 0; i < 32 * 4; ++i) {
    int lane = i % 32, m = i / 32;
    u32 bits = 0;
    for (int j = 0; j < 2; ++j) {
      int row = lane / 4, column = 2 * (lane % 4) + j;
      uint16_t found;
      const unsigned char* line = place(warp[8 * m + (turned ? column : row)].address, 16);
      memcpy(&found, line + 2 * (turned ? row : column), 2);
      bits |= (u32)found << 16 * j;
    }
    warp[lane].found[m] = bits;
  }
}
static void do_together(Fiber* warp) {
  all_lanes(warp);
  if (warp[0].need == SMALL_PRODUCT) multiply_small(warp);
  else load_matrices(warp, warp[0].need == TURNED_MATRIX);
  for (int lane = 0; lane < 32; ++lane) warp[lane].need = NOTHING;
}
static void exchange(Fiber* warp) {
  all_lanes(warp);
  u32 found[32];
  for (int lane = 0; lane < 32; ++lane) {
    found[lane] = warp[lane ^ warp[lane].other].value;
  }
  for (int lane = 0; lane < 32; ++lane) warp[lane].value = found[lane], warp[lane].need = NOTHING;
}

static void (*kernel)(void**);
static void** given;
static void thread_of_kernel() {
  kernel(given);
  rest_until(END);
}
static void run_block(int block, int threads, int bytes) {
  shared.assign(bytes, 0xff);
  fibers = std::vector<Fiber>(threads);
  for (auto& fiber : fibers) {
    fiber.stack.resize(1 << 16);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, thread_of_kernel, 0);
  }
  auto all = [](Need need) {
    for (auto& fiber : fibers)
      if (fiber.need != need) return false;
    return true;
  };
  while (!all(END)) {
    bool moved = false;
    for (now = 0; now < threads; ++now)
      if (fibers[now].need == NOTHING) {
        threadIdx = {(unsigned)now}, blockIdx = {(unsigned)block};
        swapcontext(&scheduler, &fibers[now].context);
        moved = true;
      }
    for (int i = 0; i < threads; i += 32) {
      Need need = fibers[i].need;
      if (need == PRODUCT && i % 128 == 0) multiply(&fibers[i]), moved = true;
      if (need == EXCHANGE) exchange(&fibers[i]), moved = true;
      if (need == SMALL_PRODUCT || need == MATRIX || need == TURNED_MATRIX)
        do_together(&fibers[i]), moved = true;
    }
    if (all(ALL_THREADS))
      for (auto& fiber : fibers) fiber.need = NOTHING, moved = true;
    if (!moved) refuse("nobody can go on");
  }
}

// A kernel's parameters from pointers to them, as a GPU's driver takes them.
template <class... Types, size_t... I>
static void call(void (*function)(Types...), void** arguments, std::index_sequence<I...>) {
  function(*(Types*)arguments[I]...);
}
template <class... Types> static void start(void (*function)(Types...), void** arguments) {
  call(function, arguments, std::index_sequence_for<Types...>());
}
static const struct {
  const char* name;
  void (*kernel)(void**);
} KERNELS[] = {
    {"encode_frozen", [](void** a) { start(encode_frozen, a); }},
    {"encode_and_keep", [](void** a) { start(encode_and_keep, a); }},
    {"gradients", [](void** a) { start(gradients, a); }},
    {"first_weight_gradient", [](void** a) { start(first_weight_gradient, a); }},
    {"later_weight_gradients", [](void** a) { start(later_weight_gradients, a); }},
};

extern "C" void run(const char* name, void** arguments, int blocks, int threads, int bytes) {
  for (auto& known : KERNELS)
    if (!strcmp(name, known.name)) kernel = known.kernel;
  given = arguments, gridDim = {(unsigned)blocks};
  for (int block = 0; block < blocks; ++block) run_block(block, threads, bytes);
}
