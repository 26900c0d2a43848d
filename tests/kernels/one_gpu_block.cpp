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

enum Need { NOTHING, PRODUCT, EXCHANGE, ALL_THREADS, END };
struct Copy { u32 to; const void* from; };
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Need need = NOTHING;
  float* sum;
  u64 a, b;
  int add, other;
  u32 value;
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
static u32 shared_address(const void*) { return 0; }
static void multiply_add(float (&sum)[16], u64 a, u64 b, int add) {
  Fiber& fiber = fibers[now];
  fiber.sum = sum, fiber.a = a, fiber.b = b, fiber.add = add;
  rest_until(PRODUCT);
}
static void begin_products() {}
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
static u32 rounded(float low, float high) { return to_bfloat16(low) | to_bfloat16(high) << 16; }
static int alike(int value) { return value; }
static u32 from_lane(u32 value, int other) {
  fibers[now].value = value, fibers[now].other = other;
  rest_until(EXCHANGE);
  return fibers[now].value;
}
#define BARRIER() rest_until(ALL_THREADS)
#define SHARED_BYTES(name) unsigned char* name = shared.data()
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
static void multiply(Fiber* group) {
  for (int i = 1; i < 128; ++i)
    if (group[i].need != PRODUCT || group[i].a != group[0].a || group[i].b != group[0].b)
      refuse("four warps do not multiply the same");
  static float a[64][16], b[32][16];
  for (int row = 0; row < 64; ++row)
    for (int term = 0; term < 16; ++term) a[row][term] = number(group[0].a, row, term);
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
static void exchange(Fiber* warp) {
  u32 found[32];
  for (int lane = 0; lane < 32; ++lane) {
    if (warp[lane].need != EXCHANGE) refuse("a lane is missing in an exchange");
    found[lane] = warp[lane ^ warp[lane].other].value;
  }
  for (int lane = 0; lane < 32; ++lane) warp[lane].value = found[lane], warp[lane].need = NOTHING;
}

static struct {
  const unsigned char* images;
  const long long *sample, *origins;
  const unsigned char *first, *later;
  const float* bias;
  u32 *features, *kept_1, *kept_2, *kept_3;
  int count, height, width;
} given;
static void thread_of_kernel() {
  auto kernel = given.kept_1 ? encode_and_keep : encode_frozen;
  kernel(given.images, given.sample, given.origins, given.first, given.later, given.bias,
         given.features, given.kept_1, given.kept_2, given.kept_3, given.count, given.height,
         given.width);
  rest_until(END);
}
static void run_block(int block) {
  shared.assign(ALL_BYTES, 0xff);
  fibers = std::vector<Fiber>(THREADS);
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
    for (now = 0; now < THREADS; ++now)
      if (fibers[now].need == NOTHING) {
        threadIdx = {(unsigned)now}, blockIdx = {(unsigned)block};
        swapcontext(&scheduler, &fibers[now].context);
        moved = true;
      }
    for (int i = 0; i < THREADS; i += 128)
      if (fibers[i].need == PRODUCT) multiply(&fibers[i]), moved = true;
    for (int i = 0; i < THREADS; i += 32)
      if (fibers[i].need == EXCHANGE) exchange(&fibers[i]), moved = true;
    if (all(ALL_THREADS))
      for (auto& fiber : fibers) fiber.need = NOTHING, moved = true;
    if (!moved) refuse("nobody can go on");
  }
}

extern "C" void run(const unsigned char* images, const long long* sample, const long long* origins,
                    const unsigned char* first, const unsigned char* later, const float* bias,
                    u32* features, u32* kept_1, u32* kept_2, u32* kept_3, int count, int height,
                    int width, int blocks) {
  given = {images, sample, origins, first, later, bias, features, kept_1, kept_2, kept_3, count,
           height, width};
  gridDim = {(unsigned)blocks};
  for (int block = 0; block < blocks; ++block) run_block(block);
}
extern "C" int shared_bytes() { return ALL_BYTES; }
extern "C" int threads() { return THREADS; }
