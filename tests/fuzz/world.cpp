#include "world.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace fuzz {
namespace {

constexpr size_t kMostBytes = size_t{1} << 18;  // of one block

constexpr BNNSDataType kTypes[] = {
    BNNSDataTypeFloat32,  BNNSDataTypeFloat16,  BNNSDataTypeBFloat16, BNNSDataTypeInt8,     BNNSDataTypeUInt8,
    BNNSDataTypeInt16,    BNNSDataTypeUInt16,   BNNSDataTypeInt32,    BNNSDataTypeUInt32,   BNNSDataTypeInt64,
    BNNSDataTypeUInt64,   BNNSDataTypeBoolean,  BNNSDataTypeInt1,     BNNSDataTypeInt2,     BNNSDataTypeInt4,
    BNNSDataTypeUInt1,    BNNSDataTypeUInt2,    BNNSDataTypeUInt3,    BNNSDataTypeUInt4,    BNNSDataTypeUInt6,
    BNNSDataTypeIndexed1, BNNSDataTypeIndexed2, BNNSDataTypeIndexed4, BNNSDataTypeIndexed8,
};

constexpr size_t kAbsurd[] = {
    0, size_t{1} << 31, size_t{1} << 32, size_t{1} << 40, size_t{1} << 61, size_t{1} << 62, size_t{1} << 63, SIZE_MAX,
    SIZE_MAX / 2, SIZE_MAX - 1, 1000, 65537, size_t{1} << 60, (size_t{1} << 32) + 1, SIZE_MAX / 4, SIZE_MAX / 3,
};

bool is_known(BNNSDataType type) { return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes); }
size_t bits_of(BNNSDataType type) { return static_cast<uint32_t>(type) & 0x7fff; }

// size[] that stride[k] belongs to.
size_t size_of_axis(BNNSDataLayout layout, size_t rank, size_t k) {
  if (layout == BNNSDataLayoutMHA_DHK) return k == 0 ? 0 : 3 - k;
  const bool is_first_major = (static_cast<uint32_t>(layout) & 0xffff) == 0x8001;
  return is_first_major ? rank - 1 - k : k;
}

// Hash of values. All NaNs are one: which of several is passed on is promised of norms alone (docs/compatibility.md,
// tests/test_specials.py).
uint64_t add_to_hash(uint64_t hash, const char* data, size_t bytes, BNNSDataType type) {
  const bool is_float = type == BNNSDataTypeFloat32 || type == BNNSDataTypeFloat16 || type == BNNSDataTypeBFloat16;
  const size_t width = is_float ? bits_of(type) / 8 : 1;
  const uint32_t infinity = type == BNNSDataTypeFloat32 ? 0x7f800000 : type == BNNSDataTypeFloat16 ? 0x7c00 : 0x7f80;
  for (size_t i = 0; i < bytes; i += width) {
    uint32_t value = 0;
    std::memcpy(&value, data + i, std::min(width, bytes - i));
    const uint32_t sign = width == 4 ? 0x80000000 : 0x8000;
    if (width > 1 && (value & ~sign) > infinity) value = infinity + 1;
    hash = (hash ^ value) * 1099511628211u;
  }
  return hash;
}

// The allocator of filters: it counts, and may run dry.
size_t blocks_out = 0, allocations_left = SIZE_MAX;

int allocate(void** block, size_t alignment, size_t bytes) {
  if (allocations_left == 0) return ENOMEM;
  --allocations_left;
  int status = posix_memalign(block, alignment, bytes);
  if (status == 0) ++blocks_out;
  return status;
}

void release(void* block) {
  if (block) --blocks_out;
  std::free(block);
}

}  // namespace

uint64_t Bytes::number() {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | byte();
  return value;
}

Where locate(const BNNSNDArrayDescriptor& d, size_t batch, size_t step) {
  Where at;
  at.rank = static_cast<uint32_t>(d.layout) >> 16;
  at.bits = bits_of(d.data_type);
  if (at.rank == 0 || at.rank > BNNS_MAX_TENSOR_DIMENSION || !is_known(d.data_type) || batch == 0) return at;
  if (d.layout == BNNSDataLayoutFullyConnectedSparse) return at;
  if (d.layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32) {  // one run of values
    const size_t groups = d.size[3] / 32 + (d.size[3] % 32 != 0);
    size_t values;
    if (__builtin_mul_overflow(d.size[0], d.size[1], &values) || __builtin_mul_overflow(values, d.size[2], &values) ||
        __builtin_mul_overflow(values, groups, &values) || __builtin_mul_overflow(values, size_t{32}, &values))
      return at;
    at.rank = 1;
    at.extent[0] = values;
    at.stride[0] = 1;
  } else {
    for (size_t k = 0; k < at.rank; ++k) {
      at.extent[k] = d.size[size_of_axis(d.layout, at.rank, k)];
      at.stride[k] = d.stride[k];
      if (at.stride[k] == 0 && k == 0) at.stride[k] = 1;
      if (at.stride[k] == 0 && __builtin_mul_overflow(at.extent[k - 1], at.stride[k - 1], &at.stride[k])) return at;
    }
  }
  at.extent[at.rank] = batch;
  at.stride[at.rank] = step;
  if (step == 0 && __builtin_mul_overflow(at.extent[at.rank - 1], at.stride[at.rank - 1], &at.stride[at.rank]))
    return at;
  ++at.rank;
  size_t span = 1;
  at.count = 1;
  for (size_t k = 0; k < at.rank; ++k) {
    size_t reach;
    if (at.extent[k] == 0 || __builtin_mul_overflow(at.extent[k] - 1, at.stride[k], &reach) ||
        __builtin_add_overflow(span, reach, &span) || __builtin_mul_overflow(at.count, at.extent[k], &at.count))
      return at;
  }
  if (__builtin_mul_overflow(span, at.bits, &at.bytes)) return at;
  at.bytes = at.bytes / 8 + (at.bytes % 8 != 0);
  at.sound = at.bytes < PTRDIFF_MAX;
  return at;
}

Written values_of(const BNNSNDArrayDescriptor& d, const void* data, size_t batch, size_t step) {
  return {data, locate(d, batch, step)};
}

Written values_of(const BNNSNDArrayDescriptor* d, size_t batch, size_t step) {
  return d ? values_of(*d, d->data, batch, step) : Written{nullptr, {}};
}

Written bytes_at(const void* data, size_t bytes) {
  BNNSNDArrayDescriptor d = {};
  d.layout = BNNSDataLayoutVector;
  d.data_type = BNNSDataTypeUInt8;
  d.size[0] = bytes;
  return {data, locate(d)};
}

// ---- decisions ----

World::World(const uint8_t* data, size_t size, size_t threads, bool speaks)
    : in(data, size), threads_(threads), speaks_(speaks) {
  oddity_ = in.pick(3);  // none, seldom, often
  blocks_out = 0;
  allocations_left = SIZE_MAX;
  obn_set_num_threads(threads);
  obn_set_seed(7);
  obn_clear_error();
}

World::~World() {
  for (Block& block : blocks_) std::free(block.data);
}

bool World::odd() {
  if (oddity_ == 0) return false;
  return in.one_in(oddity_ == 1 ? 64 : 12);
}

size_t World::extent() {
  if (odd()) return kAbsurd[in.pick(std::size(kAbsurd))];
  constexpr size_t kUsual[] = {2, 3, 1, 4, 5, 8, 6, 7, 9, 16, 17, 33, 12, 1, 2, 3};
  return kUsual[in.pick(std::size(kUsual))];
}

size_t World::few(size_t most) {
  if (odd()) return kAbsurd[in.pick(std::size(kAbsurd))];
  return 1 + in.pick(most);
}

size_t World::batch() {
  constexpr size_t kUsual[] = {1, 2, 3, 1, 4, 5, 7, 9};
  return odd() ? kAbsurd[in.pick(std::size(kAbsurd))] : kUsual[in.pick(std::size(kUsual))];
}

size_t World::step(const BNNSNDArrayDescriptor& d) {
  if (odd()) return kAbsurd[in.pick(std::size(kAbsurd))];
  const Where at = locate(d);
  const size_t packed = at.sound ? at.bytes * 8 / at.bits : 0;
  switch (in.pick(4)) {
    case 0:
    case 1: return 0;
    case 2: return packed;
    default: return packed + 1 + in.pick(4);
  }
}

float World::real(float usual) {
  constexpr float kOthers[] = {0.0f, -1.0f, 2.0f, 1e-5f, 0.1f, -0.5f, 100.0f, 3.0f};
  if (odd()) {
    const float odd[] = {INFINITY, -INFINITY, NAN, 1e38f, -1e38f, 1e-42f, -0.0f, 1e10f, -1e10f, std::bit_cast<float>(
                             static_cast<uint32_t>(in.number()))};
    return odd[in.pick(std::size(odd))];
  }
  return in.one_in(4) ? kOthers[in.pick(std::size(kOthers))] : usual;
}

float World::unit(float usual) {
  if (odd()) return real(usual);
  return in.one_in(4) ? static_cast<float>(in.byte()) / 255.0f : usual;
}

BNNSDataType World::float_type() {
  if (odd()) return any_type();
  constexpr BNNSDataType kUsual[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat32, BNNSDataTypeFloat16,
                                     BNNSDataTypeBFloat16};
  return kUsual[in.pick(std::size(kUsual))];
}

BNNSDataType World::any_type() {
  if (odd()) return static_cast<BNNSDataType>(in.number());
  return kTypes[in.pick(std::size(kTypes))];
}

BNNSActivation World::activation(size_t channels) {
  BNNSActivation a = {};
  if (!in.one_in(3)) return a;
  a.function = enumeration<BNNSActivationFunction>(36);
  a.alpha = real(0.5f);
  a.beta = real(1.0f);
  a.iscale = static_cast<int32_t>(in.byte()) - 128;
  a.ioffset = static_cast<int32_t>(in.byte()) - 128;
  a.ishift = odd() ? static_cast<int32_t>(in.number()) : static_cast<int32_t>(in.pick(9));
  if (a.function == BNNSActivationFunctionPReLUPerChannel ||
      a.function == BNNSActivationFunctionIntegerLinearSaturatePerChannel) {
    if (channels > 4096) return a;
    a.iscale_per_channel = static_cast<const int32_t*>(raw(4 * channels, BNNSDataTypeInt32));
    a.ioffset_per_channel = static_cast<const int32_t*>(raw(4 * channels, BNNSDataTypeInt32));
    a.ishift_per_channel = static_cast<const int32_t*>(raw(4 * channels, BNNSDataTypeUInt8));
    if (odd()) a.ishift_per_channel = nullptr;
  }
  return a;
}

const BNNSFilterParameters* World::options() {
  options_ = {};
  if (!in.one_in(3)) return nullptr;
  options_.flags = odd() ? static_cast<uint32_t>(in.number()) : in.pick(2);
  options_.n_threads = odd() ? in.number() : in.pick(4);
  if (flip()) {
    options_.alloc_memory = allocate;
    options_.free_memory = release;
    if (in.one_in(4)) allocations_left = in.pick(8);
  }
  if (odd()) options_.free_memory = nullptr;
  return &options_;
}

// ---- arrays ----

void World::restride(BNNSNDArrayDescriptor* d) {
  const size_t rank = static_cast<uint32_t>(d->layout) >> 16;
  std::fill_n(d->stride, BNNS_MAX_TENSOR_DIMENSION, size_t{0});
  if (rank > BNNS_MAX_TENSOR_DIMENSION) return;
  if (odd()) {
    for (size_t k = 0; k < rank; ++k)
      d->stride[k] = flip() ? kAbsurd[in.pick(std::size(kAbsurd))] : in.pick(40);
    return;
  }
  const size_t kind = in.pick(8);
  if (kind < 4) return;  // packed
  size_t stride = kind == 6 ? 2 : 1;
  for (size_t k = 0; k < rank; ++k) {
    d->stride[k] = stride;
    stride = stride * d->size[size_of_axis(d->layout, rank, k)] + (kind == 4 ? 0 : in.pick(4));
  }
  if (kind == 7 && rank > 1) d->stride[in.pick(rank)] = 0;  // packed here alone
}

BNNSNDArrayDescriptor World::describe(BNNSDataLayout layout, std::initializer_list<size_t> sizes, BNNSDataType type) {
  BNNSNDArrayDescriptor d = {};
  d.layout = layout;
  std::copy(sizes.begin(), sizes.end(), d.size);
  d.data_type = type;
  if (odd()) d.layout = static_cast<BNNSDataLayout>(flip() ? in.number() : (in.pick(9) << 16 | 0x8000 | in.pick(2)));
  if (!(static_cast<uint32_t>(type) & BNNSDataTypeFloatBit) && in.one_in(4)) {
    d.data_scale = real(0.5f);
    d.data_bias = real(1.0f);
  }
  if (odd()) d.size[in.pick(BNNS_MAX_TENSOR_DIMENSION)] = extent();
  restride(&d);
  return d;
}

void* World::raw(size_t bytes, BNNSDataType type) {
  if (bytes > kMostBytes) return nullptr;
  char* data = add(bytes, false, type);
  fill(data, bytes, type);
  return data;
}

void* World::scratch(size_t bytes) { return bytes > (size_t{1} << 24) ? nullptr : add(bytes, true, BNNSDataTypeUInt8); }

char* World::add(size_t bytes, bool is_scratch, BNNSDataType type) {
  void* data = nullptr;
  if (posix_memalign(&data, 128, bytes ? bytes : 1) != 0) std::abort();  // 128: what Pack32 weights need
  std::memset(data, 0x5a, bytes);
  blocks_.push_back({static_cast<char*>(data), bytes, is_scratch, type, {}});
  return static_cast<char*>(data);
}

void World::forget(const void* data) {
  Block* block = block_of(data);
  if (!block) return;
  std::free(block->data);
  blocks_.erase(blocks_.begin() + (block - blocks_.data()));
}

void World::fill(char* data, size_t bytes, BNNSDataType type) {
  constexpr uint32_t kSpecial[] = {0x7fc00000, 0x7f800000, 0xff800000, 0x00000001, 0x80000000, 0x7f7fffff, 0xffc00001,
                                   0x4f000000};
  const uint8_t seed = in.byte();
  const bool is_spiced = seed >= 200;
  uint32_t state = seed;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  const auto value = [&] {
    uint32_t n = next();
    if (is_spiced && n % 7 == 0) return kSpecial[n / 7 % std::size(kSpecial)];
    return std::bit_cast<uint32_t>((static_cast<float>(n % 4001) - 2000.0f) / 1024.0f);
  };
  size_t i = 0;
  if (type == BNNSDataTypeFloat32) {
    for (; i + 4 <= bytes; i += 4) {
      uint32_t v = value();
      std::memcpy(data + i, &v, 4);
    }
  } else if (type == BNNSDataTypeBFloat16) {
    for (; i + 2 <= bytes; i += 2) {
      uint16_t v = static_cast<uint16_t>(value() >> 16);
      std::memcpy(data + i, &v, 2);
    }
  } else if (type == BNNSDataTypeFloat16) {
    for (; i + 2 <= bytes; i += 2) {
      uint32_t n = next();
      uint16_t v = static_cast<uint16_t>(n & 0x8fff) | 0x3000;  // 0.125 to 2
      if (is_spiced && n % 7 == 0) v = static_cast<uint16_t>(kSpecial[n / 7 % std::size(kSpecial)] >> 16);
      std::memcpy(data + i, &v, 2);
    }
  }
  const size_t width = std::max<size_t>(1, bits_of(type) / 8);
  for (; i < bytes; ++i) {
    uint8_t v = static_cast<uint8_t>(next());
    if (type == BNNSDataTypeBoolean) v = v % 4 == 0;
    if (width > 1 && !is_spiced) v = i % width == 0 ? v % 16 : 0;  // small numbers
    data[i] = static_cast<char>(v);
  }
}

void* World::place(const BNNSNDArrayDescriptor& d, size_t batch, size_t step, void* twin) {
  const Where at = locate(d, batch, step);
  if (!at.sound) return odd() ? nullptr : raw(16, d.data_type);  // to be refused, so length does not matter
  if (at.bytes > kMostBytes) return nullptr;
  if (odd()) {
    switch (in.pick(3)) {
      case 0: return nullptr;
      case 1: {  // not aligned
        char* data = static_cast<char*>(raw(at.bytes + 1, d.data_type));
        return data ? data + 1 : nullptr;
      }
      default: {  // on top of another array, some values further
        if (blocks_.empty()) break;
        Block& block = blocks_[in.pick(blocks_.size())];
        const size_t width = std::max<size_t>(1, at.bits / 8), offset = in.pick(5) * width;
        if (!block.is_scratch && block.bytes >= at.bytes + offset) return block.data + offset;
      }
    }
  }
  if (twin && in.one_in(3)) {
    const Block* block = block_of(twin);
    if (block && block->bytes - static_cast<size_t>(static_cast<char*>(twin) - block->data) >= at.bytes) return twin;
  }
  return raw(at.bytes, d.data_type);
}

BNNSNDArrayDescriptor World::with_data(BNNSNDArrayDescriptor d) {
  d.data = place(d);
  if (static_cast<uint32_t>(d.data_type) & BNNSDataTypeIndexedBit && !odd()) {
    d.table_data_type = odd() ? any_type() : BNNSDataTypeFloat32;
    d.table_data = raw((size_t{1} << std::min<size_t>(8, bits_of(d.data_type))) *
                           std::max<size_t>(1, std::min<size_t>(8, bits_of(d.table_data_type) / 8)),
                       d.table_data_type);
  }
  return d;
}

BNNSNDArrayDescriptor World::optional(BNNSNDArrayDescriptor d) {
  if (in.one_in(3)) {
    d.data = nullptr;
    return d;
  }
  return with_data(d);
}

BNNSNDArrayDescriptor World::gradient(BNNSNDArrayDescriptor d, size_t batch, size_t step) {
  if (odd()) d.size[in.pick(BNNS_MAX_TENSOR_DIMENSION)] = extent();
  if (odd()) d.data_type = any_type();
  restride(&d);
  d.flags = odd() ? static_cast<BNNSNDArrayFlags>(in.number()) : static_cast<BNNSNDArrayFlags>(in.pick(2));
  d.data = place(d, batch, step);
  return d;
}

// ---- calls ----

World::Block* World::block_of(const void* data) {
  for (Block& block : blocks_)
    if (data >= block.data && data < block.data + std::max<size_t>(1, block.bytes)) return &block;
  return nullptr;
}

void World::before(const char* name) {
  name_ = name;
  for (Block& block : blocks_)
    if (!block.is_scratch) block.before.assign(block.data, block.bytes);
  say("%s\n", name);
  obn_clear_error();
}

void World::after(bool succeeded, const std::vector<Written>& written) {
  say("  %s %s\n", succeeded ? "succeeded" : "failed:", obn_last_error());
  if (!succeeded && !*obn_last_error()) broken("failed without a sentence");
  if (succeeded && *obn_last_error()) broken("succeeded and left a sentence");
  uint64_t hash = 1469598103934665603u;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    Block& block = blocks_[b];
    if (block.is_scratch) continue;
    hash = add_to_hash(hash, block.data, block.bytes, block.type);
    if (std::memcmp(block.before.data(), block.data, block.bytes) == 0) continue;
    if (!succeeded) broken("failed and changed memory");
    std::vector<bool> may(block.bytes);
    for (const Written& w : written) {
      const char* data = static_cast<const char*>(w.data);
      if (!w.where.sound || data < block.data || data >= block.data + block.bytes) continue;
      size_t index[BNNS_MAX_TENSOR_DIMENSION + 1] = {};
      for (size_t n = 0; n < w.where.count; ++n) {
        size_t at = 0;
        for (size_t k = 0; k < w.where.rank; ++k) at += index[k] * w.where.stride[k];
        const size_t first = static_cast<size_t>(data - block.data) + at * w.where.bits / 8;
        const size_t last = static_cast<size_t>(data - block.data) + ((at + 1) * w.where.bits + 7) / 8;
        for (size_t i = first; i < last && i < block.bytes; ++i) may[i] = true;
        for (size_t k = 0; k < w.where.rank && ++index[k] == w.where.extent[k]; ++k) index[k] = 0;
      }
    }
    for (size_t i = 0; i < block.bytes; ++i) {
      if (block.data[i] == block.before[i] || may[i]) continue;
      say("  byte %zu of %zu in block %zu, from %02x to %02x\n", i, block.bytes, b, block.before[i] & 0xff,
          block.data[i] & 0xff);
      broken("wrote outside of its outputs");
    }
    if (!speaks_) continue;
    std::string words;
    for (size_t i = 0; i + 4 <= block.bytes && i < 512; i += 4) {
      uint32_t word;
      std::memcpy(&word, block.data + i, 4);
      char text[16];
      std::snprintf(text, sizeof text, " %08x", static_cast<unsigned>(word));
      words += text;
    }
    say("  block %zu, %zu bytes at %p:%s\n", b, block.bytes, static_cast<void*>(block.data), words.c_str());
  }
  transcript_.push_back({name_, succeeded, hash});
}

BNNSFilter World::no_filter() {
  BNNSRandomGenerator generator = BNNSCreateRandomGeneratorWithSeed(BNNSRandomGeneratorMethodAES_CTR, 1, nullptr);
  if (flip()) filters_.push_back(generator);  // destroyed at the end
  else BNNSDestroyRandomGenerator(generator);
  switch (in.pick(3)) {
    case 0: return generator;
    case 1: return nullptr;
    default: return reinterpret_cast<BNNSFilter>(in.number() | 15);  // 15 is no kind of handle
  }
}

void World::question(BNNSFilter filter) {
  if (!in.one_in(4)) return;
  const size_t batch = this->batch();
  ask("obn_filter_work_bytes", SIZE_MAX, [&] { return obn_filter_work_bytes(filter, batch); });
  ask("obn_filter_kept_bytes", SIZE_MAX, [&] { return obn_filter_kept_bytes(filter, batch); });
  char text[64];
  const size_t capacity = batch % (sizeof text + 1);  // no byte more of the input: kept ones mean what they did
  ask("obn_filter_describe", -1, [&] { return obn_filter_describe(filter, batch, text, capacity); });
  const int setting = static_cast<int>(in.pick(5)) - 1;
  call("obn_filter_set_winograd", {}, [&] { return obn_filter_set_winograd(filter, setting); });
  call("obn_filter_set_matmul_precision", {}, [&] { return obn_filter_set_matmul_precision(filter, setting); });
  call("obn_filter_set_borrow_input", {}, [&] { return obn_filter_set_borrow_input(filter, setting); });
  const auto target = enumeration<BNNSPointerSpecifier>(2);
  ask("BNNSGetPointer", static_cast<void*>(nullptr), [&] { return BNNSGetPointer(filter, target).data; });
  const BNNSFilter none = no_filter();
  ask("obn_filter_work_bytes", SIZE_MAX, [&] { return obn_filter_work_bytes(none, batch); });
  refuse("obn_filter_set_winograd", [&] { return obn_filter_set_winograd(none, 1); });
}

void World::destroy(BNNSFilter filter) {
  auto found = std::find(filters_.begin(), filters_.end(), filter);
  if (found != filters_.end()) filters_.erase(found);
  say("BNNSFilterDestroy\n");
  BNNSFilterDestroy(filter);
  if (odd()) BNNSFilterDestroy(filter);
}

void World::finish() {
  for (BNNSFilter filter : filters_) {
    BNNSFilterDestroy(filter);            // one of the two is not its kind
    BNNSDestroyRandomGenerator(filter);
  }
  filters_.clear();
  name_ = "everything destroyed";
  if (blocks_out != 0) broken("memory of the allocator was not given back");
}

void World::say(const char* format, ...) {
  if (!speaks_) return;
  std::va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
}

void World::say(const char* name, const BNNSNDArrayDescriptor& d) {
  if (!speaks_) return;
  const size_t rank = std::min<size_t>(BNNS_MAX_TENSOR_DIMENSION, static_cast<uint32_t>(d.layout) >> 16);
  std::string sizes, strides;
  for (size_t k = 0; k < rank; ++k) {
    sizes += (k ? ", " : "") + std::to_string(d.size[k]);
    strides += (k ? ", " : "") + std::to_string(d.stride[k]);
  }
  say("  %s: layout 0x%x type 0x%x size {%s} stride {%s} flags %u data %p scale %g bias %g\n", name,
      static_cast<unsigned>(d.layout), static_cast<unsigned>(d.data_type), sizes.c_str(), strides.c_str(),
      static_cast<unsigned>(d.flags), d.data, static_cast<double>(d.data_scale), static_cast<double>(d.data_bias));
}

}  // namespace fuzz
