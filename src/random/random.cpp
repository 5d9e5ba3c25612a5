// Entry points of random generators: check, reserve a part of the stream, fill in pieces. Letters as in random.h.
#include "random/random.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>

#include "base/filter.h"
#include "base/integer.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "base/loops.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/random.h"
#include "base/status.h"
#include "base/system.h"
#include "base/types.h"
#include "base/view.h"
#include "openbnns/bnns/random.h"

namespace obn {

namespace random {

namespace {

constexpr size_t kBlock = 2048;   // numbers made at a time; even, for pairs
constexpr size_t kPiece = 16384;  // numbers of a piece of parallel work; whole blocks

// ---- generators ----

// Bytes of a stored state: the key (the seed twice), the big-endian number of the next block, and how many of its four
// values are used up.
constexpr size_t kStateBytes = 40;

class Generator {
 public:
  Generator(uint64_t seed, const Options& options) : options_(options), seed_(seed), stream_(seed) {}

  const Options& options() const { return options_; }

  // The next n values, for one call.
  RandomDraw reserve(uint64_t n) {
    std::lock_guard guard(core_lock);
    RandomDraw draw{stream_, position_};
    position_ += n;
    return draw;
  }

  void get_state(void* state) {
    std::lock_guard guard(core_lock);
    const uint64_t words[] = {seed_, seed_, 0, __builtin_bswap64(position_ / 4), position_ % 4};
    static_assert(sizeof words == kStateBytes);
    std::memcpy(state, words, sizeof words);
  }

  int set_state(const void* state) {
    uint64_t words[5];
    std::memcpy(words, state, sizeof words);
    const uint64_t block = __builtin_bswap64(words[3]);
    if (words[0] != words[1] || words[2] != 0 || block > UINT64_MAX / 8 || words[4] > 3)
      return fail("state: expected bytes that a generator gave; got others");
    const RandomStream stream(words[0]);
    std::lock_guard guard(core_lock);
    stream_ = stream;
    seed_ = words[0];
    position_ = 4 * block + words[4];
    return 0;
  }

 private:
  Options options_;
  uint64_t seed_;  // guarded by core_lock, as the two below
  RandomStream stream_;
  uint64_t position_ = 0;
};

void* create(BNNSRandomGeneratorMethod method, uint64_t seed, const BNNSFilterParameters* filter_params) {
  if (method != BNNSRandomGeneratorMethodAES_CTR) {
    fail("method: expected AES_CTR (0); got %u", static_cast<unsigned>(method));
    return nullptr;
  }
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  Generator* generator = options.make<Generator>(seed, options);
  if (!generator) return nullptr;
  void* handle = add_handle(HandleKind::random_generator, generator);
  if (handle) return handle;
  generator->~Generator();
  options.release(generator);
  return nullptr;
}

Generator* find(BNNSRandomGenerator handle) {
  return static_cast<Generator*>(find_handle(HandleKind::random_generator, handle));
}

// ---- walking ----

int read_output(const BNNSNDArrayDescriptor* descriptor, View* y) {
  if (!descriptor) return fail("out: expected a descriptor; got NULL");
  if (read_view(*descriptor, Access::write, "out", y) != 0) return -1;
  if (y->layout == BNNSDataLayoutFullyConnectedSparse || y->layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32)
    return fail("out: expected a layout of plain values; got %s", obn::name_of(y->layout));
  size_t only_sample;
  return read_batch(*y, y->data, 1, 0, Access::write, "out", &only_sample);
}

int read_floats(const BNNSNDArrayDescriptor* descriptor, View* y) {
  if (read_output(descriptor, y) != 0) return -1;
  return is_float(y->type) ? 0 : fail("out: expected a float type; got %s", obn::name_of(y->type));
}

// The axes of one tensor, merged.
struct Walk : Loops<1> {
  explicit Walk(const View& view) {
    tensors = 1;
    for (size_t k = 0; k < view.rank; ++k) add(view.extent[k], &view.stride[k]);
    finish();
  }
  bool is_one_run() const { return rank == 1 && stride[0][0] == 1; }

  // Calls body(offset, stride, done, n) for the stretches of values first … first + count - 1 in walk order.
  template <class Body>
  void stretches(size_t first, size_t count, const Body& body) const {
    Position<1> at(*this, 1);
    at.seek(first / extent[0]);
    size_t i = first % extent[0];
    for (size_t done = 0; done < count;) {
      const size_t n = std::min(extent[0] - i, count - done);
      body(at.offset(0) + i * stride[0][0], stride[0][0], done, n);
      done += n;
      i = 0;
      if (done < count) at.step();
    }
  }
};

// Calls block(first, n) for all numbers of a fill, in pieces.
template <class Block>
void each_block(size_t count, size_t threads, const Block& block) {
  const auto piece = [&](size_t from, size_t to) {
    for (size_t first = from; first < to; first += kBlock) block(first, std::min(kBlock, to - first));
  };
  if (count <= kPiece) return piece(0, count);
  parallel(divide_up(count, kPiece), threads_for(threads), kFunction * count,
           [&](size_t i) { piece(i * kPiece, std::min((i + 1) * kPiece, count)); });
}

float largest_of(BNNSDataType type) {
  if (type == BNNSDataTypeFloat16) return 65504.0f;
  if (type == BNNSDataTypeBFloat16) return float_of_bfloat16(0x7f7f);
  return std::numeric_limits<float>::max();
}

// Fills y with floats: make(v, row, n) turns n values of the stream into n numbers; n is even where they come in pairs.
template <class Make>
void fill_floats(Generator& generator, const View& y, bool in_pairs, const Make& make) {
  const Kernels& kernels = targets.best();
  const RandomDraw draw = generator.reserve(y.count + (in_pairs ? y.count % 2 : 0));
  const Walk walk(y);
  const bool is_direct = walk.is_one_run() && y.type == BNNSDataTypeFloat32;
  const float limit = largest_of(y.type);
  each_block(y.count, generator.options().threads, [&](size_t first, size_t n) {
    uint32_t* v = reinterpret_cast<uint32_t*>(scratch());
    float* buffer = reinterpret_cast<float*>(v + kBlock);
    const size_t whole = n + (in_pairs ? n % 2 : 0);
    draw.stream.get(draw.start + first, v, whole);
    float* row = is_direct && whole == n ? static_cast<float*>(y.data) + first : buffer;
    make(v, row, whole);
    if (row != buffer) return;
    if (y.type != BNNSDataTypeFloat32) kernels.clamp(limit, row, n);
    walk.stretches(first, n, [&](size_t offset, size_t stride, size_t done, size_t count) {
      kernels.store(y.type, static_cast<std::byte*>(y.data) + offset * bytes_of(y.type), stride, count, row + done);
    });
  });
}

// ---- uniform ----

// A bound, capped to the type's largest number and representable in it.
int read_bound(const char* argument, float given, BNNSDataType type, float* bound) {
  if (std::isnan(given)) return fail("%s: expected a number; got nan", argument);
  *bound = std::clamp(given, -largest_of(type), largest_of(type));
  float stored = *bound;
  if (type == BNNSDataTypeFloat16) stored = float_of_float16(float16_of_float(*bound));
  if (type == BNNSDataTypeBFloat16) stored = float_of_bfloat16(bfloat16_of_float(*bound));
  if (stored == *bound) return 0;
  return fail("%s: expected a number that %s can hold; got %.9g", argument, obn::name_of(type),
              static_cast<double>(given));
}

int fill_uniform(Generator& generator, const BNNSNDArrayDescriptor* descriptor, float a, float b) {
  View y;
  float low, high;
  if (read_floats(descriptor, &y) != 0 || read_bound("low", a, y.type, &low) != 0 ||
      read_bound("high", b, y.type, &high) != 0 || !scratch())
    return -1;
  if (low > high)
    return fail("low: expected at most high, %g; got %g", static_cast<double>(high), static_cast<double>(low));
  // A width that is no float32 is halved, with all that goes with it.
  const float factor = std::isinf(high - low) ? 2.0f : 1.0f;
  const float start = low / factor, width = high / factor - start;
  const Kernels& kernels = targets.best();
  fill_floats(generator, y, false, [&](const uint32_t* v, float* row, size_t n) {
    kernels.uniform(v, start, width, factor, row, n);
  });
  return 0;
}

// ---- normal ----

int fill_normal(Generator& generator, const BNNSNDArrayDescriptor* descriptor, float mean, float deviation) {
  View y;
  if (read_floats(descriptor, &y) != 0 || !scratch()) return -1;
  if (!std::isfinite(mean)) return fail("mean: expected a finite number; got %g", static_cast<double>(mean));
  if (!(deviation >= 0.0f) || std::isinf(deviation))
    return fail("std: expected a finite number of at least 0; got %g", static_cast<double>(deviation));
  const Kernels& kernels = targets.best();
  fill_floats(generator, y, true,
              [&](const uint32_t* v, float* row, size_t n) { kernels.normal(v, mean, deviation, row, n); });
  return 0;
}

// ---- whole numbers ----

constexpr BNNSDataType kIntegerTypes[kIntegers] = {BNNSDataTypeInt8,   BNNSDataTypeUInt8,  BNNSDataTypeInt16,
                                                   BNNSDataTypeUInt16, BNNSDataTypeInt32,  BNNSDataTypeUInt32,
                                                   BNNSDataTypeInt64,  BNNSDataTypeUInt64};

void scatter(const std::byte* from, size_t bytes, std::byte* to, size_t stride, size_t n) {
  for (size_t i = 0; i < n; ++i) std::memcpy(to + i * stride * bytes, from + i * bytes, bytes);
}

int fill_integers(Generator& generator, const BNNSNDArrayDescriptor* descriptor, int64_t a, int64_t b) {
  View y;
  if (read_output(descriptor, &y) != 0 || !scratch()) return -1;
  const size_t type = static_cast<size_t>(std::find(kIntegerTypes, kIntegerTypes + kIntegers, y.type) - kIntegerTypes);
  if (type == kIntegers) return fail("out: expected an integer type of 8 to 64 bits; got %s", obn::name_of(y.type));
  const bool is_signed = static_cast<uint32_t>(y.type) & BNNSDataTypeIntBit;
  const size_t bits = bits_of(y.type) - is_signed;
  const int64_t last = bits >= 63 ? INT64_MAX : (int64_t{1} << bits) - 1;
  const int64_t low = std::max(a, is_signed ? -last - 1 : int64_t{0});
  const int64_t high = last == INT64_MAX ? b : std::min(b, last + 1);  // not included
  if (low >= high)
    return fail("low: expected less than high, within %s; got %lld and %lld", obn::name_of(y.type),
                static_cast<long long>(a), static_cast<long long>(b));
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const size_t each = values_for(range), bytes = bytes_of(y.type);
  const RandomDraw draw = generator.reserve(each * y.count);
  const auto make = targets.best().integers[type];
  const Walk walk(y);
  const bool is_direct = walk.is_one_run();
  each_block(y.count, generator.options().threads, [&](size_t first, size_t n) {
    uint32_t* v = reinterpret_cast<uint32_t*>(scratch());
    std::byte* buffer = reinterpret_cast<std::byte*>(v + 2 * kBlock);
    std::byte* data = static_cast<std::byte*>(y.data);
    draw.stream.get(draw.start + each * first, v, each * n);
    make(v, low, range, is_direct ? data + first * bytes : buffer, n);
    if (is_direct) return;
    walk.stretches(first, n, [&](size_t offset, size_t stride, size_t done, size_t count) {
      scatter(buffer + done * bytes, bytes, data + offset * bytes, stride, count);
    });
  });
  return 0;
}

// ---- categories ----

// The last coordinate of the tuple, as an axis of the view.
size_t last_axis(const View& view) {
  return view.layout == BNNSDataLayoutRowMajorMatrix ? 0 : view.axis_of_size[view.rank - 1];
}

// Rows of weights and of draws, side by side.
struct Categories {
  View y, p;
  size_t axis = 0;  // along the draws, and the categories
  size_t rows = 1, draws = 1, count = 1;
  bool is_log = false;
  Loops<3> loops;  // over the rows: y, p, place of the row's first number in walk order
  size_t y_step = 0, p_step = 0, place_step = 0;  // from one draw or category to the next

  int read(const BNNSNDArrayDescriptor* descriptor, const BNNSNDArrayDescriptor* probabilities, bool log);
  // shares (count): sums of the weights up to each category. False when there is nothing to choose from, or a weight
  // is no weight.
  bool add_up(size_t offset, double* shares) const;
};

int Categories::read(const BNNSNDArrayDescriptor* descriptor, const BNNSNDArrayDescriptor* probabilities, bool log) {
  is_log = log;
  if (read_floats(descriptor, &y) != 0) return -1;
  if (!probabilities) return fail("probabilities: expected a descriptor; got NULL");
  if (read_view(*probabilities, Access::read, "probabilities", &p) != 0) return -1;
  if (p.type != y.type)
    return fail("probabilities: expected %s, as out; got %s", obn::name_of(y.type), obn::name_of(p.type));
  size_t only_sample;
  if (read_batch(p, p.data, 1, 0, Access::read, "probabilities", &only_sample) != 0 ||
      check_disjoint(y, y.data, 0, "out", p, p.data, 0, "probabilities", 1) != 0)
    return -1;
  axis = last_axis(y);
  bool same = p.layout == y.layout;
  for (size_t k = 0; same && k < y.rank; ++k) same = k == axis || p.extent[k] == y.extent[k];
  if (!same) {
    ShapeText expected, got;
    return fail("probabilities: expected the shape of out, %s in layout %s, but for the last axis; got %s in layout %s",
                shape_text(y, &expected), obn::name_of(y.layout), shape_text(p, &got), obn::name_of(p.layout));
  }
  draws = y.extent[axis];
  count = p.extent[axis];
  // Category numbers are stored as floats: all of them must be whole there.
  const size_t most = y.type == BNNSDataTypeFloat32 ? size_t{1} << 24 : y.type == BNNSDataTypeFloat16 ? 2048 : 256;
  if (count > most)
    return fail("probabilities: expected at most %zu categories, which %s can number; got %zu", most,
                obn::name_of(y.type), count);
  loops.tensors = 3;
  size_t place = 1;
  for (size_t k = 0; k < y.rank; ++k) {
    if (k == axis) {
      place_step = place;
      y_step = y.stride[k];
      p_step = p.stride[k];
    } else {
      const size_t strides[] = {y.stride[k], p.stride[k], place};
      loops.add(y.extent[k], strides);
      rows *= y.extent[k];
    }
    place *= y.extent[k];
  }
  loops.finish();
  return 0;
}

bool Categories::add_up(size_t offset, double* shares) const {
  const Kernels& kernels = targets.best();
  constexpr size_t kSome = 256;  // weights loaded at a time
  const auto each = [&](const auto& body) {
    float some[kSome];
    for (size_t first = 0; first < count; first += kSome) {
      const size_t n = std::min(kSome, count - first);
      kernels.load(p.type, static_cast<const std::byte*>(p.data) + (offset + first * p_step) * bytes_of(p.type), p_step,
                   n, some);
      for (size_t k = 0; k < n; ++k) body(first + k, static_cast<double>(some[k]));
    }
  };
  double largest = 0.0, total = 0.0;
  if (is_log) {
    largest = -std::numeric_limits<double>::infinity();
    each([&](size_t, double v) { largest = std::max(largest, v); });
    if (std::isinf(largest)) return false;
  }
  bool is_good = true;
  each([&](size_t k, double v) {
    const double share = is_log ? std::exp(v - largest) : v;
    is_good &= share >= 0.0 && !std::isinf(share);  // NaN is neither
    total += share;
    shares[k] = total;
  });
  return is_good && total > 0.0;
}

int fill_categories(Generator& generator, const BNNSNDArrayDescriptor* descriptor,
                    const BNNSNDArrayDescriptor* probabilities, bool log) {
  Categories c;
  if (c.read(descriptor, probabilities, log) != 0) return -1;
  // A part is a row, or so many draws of it that its sums are worth making again.
  const size_t length = std::max(kPiece, 4 * c.count);
  const size_t parts = divide_up(c.draws, length);
  const bool fits = c.count * sizeof(double) <= kScratchBytes - 2 * kBlock * sizeof(uint32_t);
  double* buffer = fits ? nullptr : reinterpret_cast<double*>(workspace(c.count * sizeof(double)));
  std::byte* own = scratch();
  if (!own || (!fits && !buffer)) return -1;
  // The first bytes of a thread's scratch hold values of the stream and their numbers, the rest sums.
  const auto shares_of = [&](std::byte* block) {
    return fits ? reinterpret_cast<double*>(block + 2 * kBlock * sizeof(uint32_t)) : buffer;
  };
  Position<3> row(c.loops, 0);
  for (size_t r = 0; r < c.rows; ++r) {  // nothing is drawn before every row is good
    row.seek(r);
    if (!c.add_up(row.offset(1), shares_of(own)))
      return fail("probabilities: expected rows of %s; row %zu is not",
                  log ? "logarithms below infinity, one of them above -infinity"
                      : "finite numbers of at least 0, one of them above it",
                  r);
  }
  const RandomDraw draw = generator.reserve(c.y.count);
  const Kernels& kernels = targets.best();
  const size_t per_piece = std::max<size_t>(1, kPiece / (std::min(c.draws, length) + c.count));
  const size_t items = c.rows * parts;
  parallel(divide_up(items, per_piece), fits ? threads_for(generator.options().threads) : 1, kFunction * c.y.count, [&](size_t piece) {
    std::byte* block = scratch();
    double* shares = shares_of(block);
    uint32_t* v = reinterpret_cast<uint32_t*>(block);
    float* numbers = reinterpret_cast<float*>(v + kBlock);
    Position<3> at(c.loops, 0);
    for (size_t item = piece * per_piece; item < std::min((piece + 1) * per_piece, items); ++item) {
      at.seek(item / parts);
      c.add_up(at.offset(1), shares);
      const size_t from = item % parts * length, to = std::min(from + length, c.draws);
      for (size_t first = from; first < to; first += kBlock) {
        const size_t n = std::min(kBlock, to - first);
        const uint64_t place = draw.start + at.offset(2) + first * c.place_step;
        if (c.place_step == 1) {
          draw.stream.get(place, v, n);
        } else {
          for (size_t i = 0; i < n; ++i) draw.stream.get(place + i * c.place_step, v + i, 1);
        }
        for (size_t i = 0; i < n; ++i) {
          const double mark = static_cast<double>(v[i]) * 0x1p-32 * shares[c.count - 1];
          numbers[i] = static_cast<float>(std::upper_bound(shares, shares + c.count, mark) - shares);
        }
        std::byte* to_data = static_cast<std::byte*>(c.y.data) +
                             (at.offset(0) + first * c.y_step) * bytes_of(c.y.type);
        kernels.store(c.y.type, to_data, c.y_step, n, numbers);
      }
    }
  });
  return 0;
}

}  // namespace
}  // namespace random
}  // namespace obn

using namespace obn;
using namespace obn::random;

extern "C" {

BNNSRandomGenerator BNNSCreateRandomGenerator(BNNSRandomGeneratorMethod method,
                                              const BNNSFilterParameters* filter_params) {
  return create(method, unpredictable_seed(), filter_params);
}

BNNSRandomGenerator BNNSCreateRandomGeneratorWithSeed(BNNSRandomGeneratorMethod method, uint64_t seed,
                                                      const BNNSFilterParameters* filter_params) {
  return create(method, seed, filter_params);
}

void BNNSDestroyRandomGenerator(BNNSRandomGenerator generator) {
  if (!generator) return;
  auto* dropped = static_cast<Generator*>(drop_handle(HandleKind::random_generator, generator));
  if (!dropped) return;
  const Options options = dropped->options();
  dropped->~Generator();
  options.release(dropped);
}

size_t BNNSRandomGeneratorStateSize(BNNSRandomGenerator generator) { return find(generator) ? kStateBytes : 0; }

int BNNSRandomGeneratorGetState(BNNSRandomGenerator generator, size_t state_size, void* state) {
  Generator* found = find(generator);
  if (!found) return -1;
  if (!state || state_size < kStateBytes)
    return fail("state: expected room for %zu bytes; got %zu", kStateBytes, state ? state_size : 0);
  found->get_state(state);
  return 0;
}

int BNNSRandomGeneratorSetState(BNNSRandomGenerator generator, size_t state_size, void* state) {
  Generator* found = find(generator);
  if (!found) return -1;
  if (!state || state_size < kStateBytes)
    return fail("state: expected %zu bytes; got %zu", kStateBytes, state ? state_size : 0);
  return found->set_state(state);
}

int BNNSRandomFillUniformFloat(BNNSRandomGenerator generator, BNNSNDArrayDescriptor* desc, float a, float b) {
  Generator* found = find(generator);
  return found ? interruptible(nullptr, [&] { return fill_uniform(*found, desc, a, b); }) : -1;
}

int BNNSRandomFillUniformInt(BNNSRandomGenerator generator, BNNSNDArrayDescriptor* desc, int64_t a, int64_t b) {
  Generator* found = find(generator);
  return found ? interruptible(nullptr, [&] { return fill_integers(*found, desc, a, b); }) : -1;
}

int BNNSRandomFillNormalFloat(BNNSRandomGenerator generator, BNNSNDArrayDescriptor* desc, float mean, float stddev) {
  Generator* found = find(generator);
  return found ? interruptible(nullptr, [&] { return fill_normal(*found, desc, mean, stddev); }) : -1;
}

int BNNSRandomFillCategoricalFloat(BNNSRandomGenerator generator, const BNNSNDArrayDescriptor* desc,
                                   const BNNSNDArrayDescriptor* probabilities, bool log_probabilities) {
  Generator* found = find(generator);
  if (!found) return -1;
  return interruptible(nullptr, [&] { return fill_categories(*found, desc, probabilities, log_probabilities); });
}
}
