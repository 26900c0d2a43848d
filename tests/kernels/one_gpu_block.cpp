// Runs fused_encoder.cu on a CPU, block after block: its threads are fibers that meet where a GPU's
// threads do. A fiber that needs the others (a product of four warps, an exchange between lanes, a
// barrier) says so and rests until all of them have come. Four warps run as far as they can before the
// next four begin, in the next block in the opposite order: what lacks a barrier shows.
//
// Copies are as late as can be: into shared memory when nobody can go on without them, out of it when
// somebody waits for their end. So are products: in one block later than copies, in the next earlier.
// What has not come yet, and what nobody wrote, is NaN, and so is to a product what a thread wrote and
// has not shown.

#include <math.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
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

enum Need { NOTHING, PRODUCT, SMALL_PRODUCT, TURNED_MATRIX, EXCHANGE, ARRIVAL, ALL_THREADS, END };
struct CopyIn { u32 to; const void* from; u32 bytes; };
struct CopyOut { void* to; u32 from, bytes; };
struct Arrival {
  u32 threads, turn = 0;  // the turn that is not over
  u32 arrived = 0, expected = 0;
  std::vector<CopyIn> copies;
};
struct Product { float* sum; u64 a, b; int add; };  // of matrices in shared memory
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Need need = NOTHING;
  float* sum;
  u32 a[4], b0, b1;  // a small product's factors of this thread
  int other;
  u32 value, address, found[4], arrival, turn;
  bool may_multiply = false;
  std::vector<Product> products;
  std::vector<CopyOut> copies;
  std::vector<u32> written;  // and not shown: units of 16 bytes
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int now;
static std::vector<unsigned char> shared, unseen;  // unseen: a unit that somebody has to show
static std::map<u32, Arrival> arrivals;

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
static unsigned char* piece(u32 address, u32 bytes) {
  if (address % 4 || address + bytes > shared.size()) refuse("an address outside shared memory");
  return shared.data() + address;
}
static unsigned char* place(u32 address, u32 bytes) {
  if (address % bytes) refuse("an address between two places");
  return piece(address, bytes);
}
static void write(u32 to, const void* values, u32 bytes) {
  memcpy(place(to, bytes), values, bytes);
  unseen[to / 16] = 1;
  fibers[now].written.push_back(to / 16);
}
static void check_shown(u32 address, u32 bytes) {
  for (u32 unit = address / 16; unit < (address + bytes + 15) / 16; ++unit)
    if (unseen[unit]) refuse("a copy does not see what was written");
}

#define CCLF_PRIMITIVES
static u32 shared_start() { return 0; }
static void load_matrix_transposed(u32 (&found)[4], u32 address) {
  fibers[now].address = address;
  rest_until(TURNED_MATRIX);
  memcpy(found, fibers[now].found, 16);
}
static void multiply_add(float (&sum)[16], u64 a, u64 b, int add) {
  if (!fibers[now].may_multiply) refuse("a product that has not begun");
  fibers[now].products.push_back({sum, a, b, add});
}
static void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  Fiber& fiber = fibers[now];
  memcpy(fiber.a, a, 16);
  fiber.sum = sum, fiber.b0 = b0, fiber.b1 = b1;
  rest_until(SMALL_PRODUCT);
}
static void wgmma_fence() { fibers[now].may_multiply = true; }
static void wgmma_wait() {
  rest_until(PRODUCT);
  fibers[now].may_multiply = false;
}
static void fence_async_proxy() {
  for (u32 unit : fibers[now].written) unseen[unit] = 0;
  fibers[now].written.clear();
}
static void init_mbarrier(u32 arrival, u32 threads) {
  place(arrival, 8);
  arrivals[arrival] = {threads};
}
static void mbarrier_arrive(u32 arrival) {
  if (++arrivals.at(arrival).arrived > arrivals.at(arrival).threads) refuse("one arrives too many");
}
static void mbarrier_expect_bytes(u32 arrival, u32 bytes) {
  mbarrier_arrive(arrival);
  if ((arrivals.at(arrival).expected += bytes) >= 1u << 20) refuse("more bytes than can be expected");
}
static void mbarrier_wait(u32 arrival, u32 turn) {
  if (arrivals.at(arrival).turn % 2 != turn) return;
  fibers[now].arrival = arrival, fibers[now].turn = turn;
  rest_until(ARRIVAL);
}
static void copy_in(u32 to, const void* from, u32 bytes, u32 arrival) {
  if ((uint64_t)from % 16 || to % 16 || bytes % 16) refuse("a copy of what is no multiple of 16");
  check_shown(to, bytes);
  for (auto& [address, other] : arrivals)
    for (auto& copy : other.copies)
      if (to < copy.to + copy.bytes && copy.to < to + bytes) refuse("two copies to one place");
  memset(piece(to, bytes), 0xff, bytes);
  arrivals.at(arrival).copies.push_back({to, from, bytes});
}
static void copy_out(void* to, u32 from, u32 bytes) {
  if ((uint64_t)to % 16 || from % 16 || bytes % 16) refuse("a copy to what is no multiple of 16");
  check_shown(from, bytes);
  fibers[now].copies.push_back({to, from, bytes});
}
static void wait_for_copies_out() {
  for (auto& copy : fibers[now].copies) memcpy(copy.to, piece(copy.from, copy.bytes), copy.bytes);
  fibers[now].copies.clear();
}
static void store_4_bytes(u32 to, u32 value) { write(to, &value, 4); }
static void store_16_bytes(u32 to, u32 a, u32 b, u32 c, u32 d) {
  u32 values[4] = {a, b, c, d};
  write(to, values, 16);
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
static u32 to_bf16x2(float low, float high) { return to_bfloat16(low) | to_bfloat16(high) << 16; }
static int warp_uniform(int value) { return value; }
static u32 shuffle_xor(u32 value, int other) {
  fibers[now].value = value, fibers[now].other = other;
  rest_until(EXCHANGE);
  return fibers[now].value;
}
#define SYNC_THREADS() rest_until(ALL_THREADS)
#include KERNEL

// Row `row` and term `term` of a matrix by its description: see wgmma's matrix descriptor, no swizzle.
static float number(u64 matrix, int row, int term) {
  u32 first = (matrix & 0x3fff) * 16, next_terms = (matrix >> 16 & 0x3fff) * 16;
  u32 next_rows = (matrix >> 32 & 0x3fff) * 16;
  u32 at = first + row / 8 * next_rows + row % 8 * 16 + term / 8 * next_terms + term % 8 * 2;
  if (at + 2 > shared.size()) refuse("a matrix that ends outside shared memory");
  if (unseen[at / 16]) return NAN;
  uint16_t bits;
  memcpy(&bits, shared.data() + at, 2);
  return from_bfloat16(bits);
}
static void multiply(Fiber* group, size_t number) {
  const Product& product = group[0].products[number];
  static float a[64][16], b[32][16];
  for (int i = 0; i < 64 * 16; ++i) a[i / 16][i % 16] = ::number(product.a, i / 16, i % 16);
  for (int i = 0; i < 32 * 16; ++i) b[i / 16][i % 16] = ::number(product.b, i / 16, i % 16);
  for (int i = 0; i < 128; ++i) {
    const Product& mine = group[i].products[number];
    if (mine.a != product.a || mine.b != product.b) refuse("four warps do not multiply the same");
    for (int j = 0; j < 16; ++j) {
      int row = 16 * (i / 32) + i % 32 / 4 + 8 * (j / 2 % 2), output = 8 * (j / 4) + 2 * (i % 4) + j % 2;
      float sum = mine.add ? mine.sum[j] : 0.0f;
      for (int term = 0; term < 16; ++term) sum += a[row][term] * b[output][term];
      mine.sum[j] = sum;
    }
  }
}
// Of the first four warps that all wait for their products.
static bool multiply() {
  for (size_t first = 0; first + 128 <= fibers.size(); first += 128) {
    Fiber* group = &fibers[first];
    bool all = true;
    for (int i = 0; i < 128; ++i) all &= group[i].need == PRODUCT;
    if (!all) continue;
    for (int i = 1; i < 128; ++i)
      if (group[i].products.size() != group[0].products.size())
        refuse("four warps do not multiply the same");
    for (size_t number = 0; number < group[0].products.size(); ++number) multiply(group, number);
    for (int i = 0; i < 128; ++i) group[i].products.clear(), group[i].need = NOTHING;
    return true;
  }
  return false;
}
static void all_lanes(const Fiber* warp) {
  for (int lane = 1; lane < 32; ++lane)
    if (warp[lane].need != warp[0].need) refuse("lanes of a warp do not do the same");
}
// The 16 x 16 numbers that the lanes of a warp have in their registers.
static void gather(const Fiber* warp, float (*a)[16]) {
  for (int i = 0; i < 32 * 8; ++i) {
    int lane = i / 8, j = i % 8;  // two in each register: rows 0, 8, 0, 8, terms 0, 0, 8, 8 further
    int row = lane / 4 + 8 * (j / 2 % 2), term = 2 * (lane % 4) + 8 * (j / 4) + j % 2;
    a[row][term] = from_bfloat16(warp[lane].a[j / 2] >> 16 * (j % 2) & 0xffff);
  }
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
// Four matrices of 8 x 8, turned: lane 8 m + r named row r of matrix m.
static void load_matrices(Fiber* warp) {
  for (int i = 0; i < 32 * 4; ++i) {
    int lane = i % 32, m = i / 32;
    u32 bits = 0;
    for (int j = 0; j < 2; ++j) {
      int row = lane / 4, column = 2 * (lane % 4) + j;
      uint16_t found;
      memcpy(&found, place(warp[8 * m + column].address, 16) + 2 * row, 2);
      bits |= (u32)found << 16 * j;
    }
    warp[lane].found[m] = bits;
  }
}
static void do_together(Fiber* warp) {
  all_lanes(warp);
  if (warp[0].need == SMALL_PRODUCT) multiply_small(warp);
  else load_matrices(warp);
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

// All bytes of an arrival that somebody waits for.
static bool bring_bytes() {
  for (auto& fiber : fibers) {
    if (fiber.need != ARRIVAL) continue;
    Arrival& arrival = arrivals.at(fiber.arrival);
    u32 bytes = 0;
    for (auto& copy : arrival.copies) bytes += copy.bytes;
    if (bytes != arrival.expected || arrival.arrived != arrival.threads) continue;
    for (auto& copy : arrival.copies) memcpy(piece(copy.to, copy.bytes), copy.from, copy.bytes);
    arrival = {arrival.threads, arrival.turn + 1};
    u32 over = fiber.arrival;
    for (auto& other : fibers)
      if (other.need == ARRIVAL && other.arrival == over) other.need = NOTHING;
    return true;
  }
  return false;
}

static void (*kernel)(void**);
static void** given;
static void thread_of_kernel() {
  kernel(given);
  if (!fibers[now].copies.empty()) refuse("ends before its copies");
  if (!fibers[now].products.empty()) refuse("ends before its products");
  rest_until(END);
}
// Threads `first` and on go as far as they can without the others: whether any did.
static bool go_on(int block, int first, int last) {
  bool moved = false;
  for (now = first; now < last; ++now)
    if (fibers[now].need == NOTHING) {
      threadIdx = {(unsigned)now}, blockIdx = {(unsigned)block};
      swapcontext(&scheduler, &fibers[now].context);
      moved = true;
    }
  for (int i = first; i < last; i += 32) {
    Need need = fibers[i].need;
    if (need == EXCHANGE) exchange(&fibers[i]), moved = true;
    if (need == SMALL_PRODUCT || need == TURNED_MATRIX) do_together(&fibers[i]), moved = true;
  }
  return moved;
}
static void run_block(int block, int threads, int bytes) {
  shared.assign(bytes, 0xff);
  unseen.assign((bytes + 15) / 16, 0);
  arrivals.clear();
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
  int groups = (threads + 127) / 128;
  while (!all(END)) {
    bool moved = false;
    for (int i = 0; i < groups; ++i) {
      int first = 128 * (block % 2 ? groups - 1 - i : i);
      while (go_on(block, first, first + 128 < threads ? first + 128 : threads)) moved = true;
    }
    if (all(ALL_THREADS))
      for (auto& fiber : fibers) fiber.need = NOTHING, moved = true;
    if (moved) continue;
    bool bytes_first = block % 2 == 0;
    if (!(bytes_first ? bring_bytes() || multiply() : multiply() || bring_bytes()))
      refuse("nobody can go on");
  }
  for (auto& [address, arrival] : arrivals)
    if (!arrival.copies.empty()) refuse("a block ends before its copies");
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
