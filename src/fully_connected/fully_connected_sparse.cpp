// Sparse weights: packing them, checking what was packed, and the two products with them. Letters as in
// fully_connected.h.
//
// Packed weights are rows of (column, value), compressed: a header, the places where rows start (O + 1), the columns
// and the values. Where that would take more memory than the plain matrix, packed weights are the plain matrix, row by
// row. So they never need more than the dense size, and their size, which the descriptor records, tells which form it
// is. They lie where the caller has them, at any address a value may have, which need not suit a header: words go in and
// out by copies.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "base/integer.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/types.h"
#include "fully_connected/fully_connected.h"

namespace obn::fully_connected {
namespace {

using activation::ref::Values;
using activation::ref::Whole;

constexpr uint64_t kMark = 0x7773706573726170;  // tells our own packing from stray memory
constexpr size_t kSamples = 8;                  // taken together: their values lie side by side

struct Header {
  uint64_t mark;
  uint64_t bytes;
  uint64_t outputs;
  uint64_t inputs;
  uint32_t count;
  uint32_t type;
};

bool is_integer_type(BNNSDataType type) {
  return static_cast<uint32_t>(type) & (BNNSDataTypeIntBit | BNNSDataTypeUIntBit);
}

Values values_of(const View& view) {
  return {view.data, view.type, view.scale, view.bias, view.table, view.table_type};
}

// False when the size cannot be counted.
bool dense_bytes(size_t outputs, size_t inputs, BNNSDataType type, size_t* bytes) {
  return !__builtin_mul_overflow(outputs, inputs, bytes) && !__builtin_mul_overflow(*bytes, bytes_of(type), bytes);
}

// SIZE_MAX when the compressed form does not exist.
size_t compressed_bytes(size_t outputs, size_t inputs, size_t count, BNNSDataType type) {
  if (count > UINT32_MAX || inputs > UINT32_MAX || outputs > UINT32_MAX) return SIZE_MAX;
  return sizeof(Header) + (outputs + 1 + count) * sizeof(uint32_t) + count * bytes_of(type);
}

// ---- packing ----

// The arguments that both forms share, checked.
struct Packing {
  Options options;
  size_t outputs;
  size_t inputs;
  bool columns_first;  // of a pair of indices
  View values;
  size_t count;
};

// One entry of the matrix: o·I + i, and which value it has.
struct Entry {
  size_t place;
  size_t index;
};

// Value `index` of an array that is walked in memory order.
size_t offset_of(const View& view, size_t index) {
  size_t offset = 0;
  for (size_t k = 0; k < view.rank; ++k) {
    offset += index % view.extent[k] * view.stride[k];
    index /= view.extent[k];
  }
  return offset;
}

int read_integers(const BNNSNDArrayDescriptor* descriptor, const char* argument, View* view) {
  size_t unused;
  if (!descriptor) return fail("%s: expected a descriptor; got NULL", argument);
  if (read_view(*descriptor, Access::read, argument, view) != 0 ||
      read_batch(*view, view->data, 1, 0, Access::read, argument, &unused) != 0)
    return -1;
  if (!is_integer_type(view->type)) return fail("%s: expected integers; got %s", argument, name_of(view->type));
  return 0;
}

// Reads index `index` and refuses what is not below `limit`.
int get_index(const View& view, size_t index, size_t limit, const char* argument, size_t* value) {
  const Whole got = activation::ref::get_stored(values_of(view), offset_of(view, index));
  if (got < 0 || got >= static_cast<Whole>(limit))
    return fail("%s: expected values below %zu; got %lld", argument, limit, static_cast<long long>(got));
  *value = static_cast<size_t>(got);
  return 0;
}

int check_packing(const BNNSNDArrayDescriptor* dense, const BNNSNDArrayDescriptor* values,
                  const BNNSNDArrayDescriptor* out, const BNNSFilterParameters* filter_params, Packing* p) {
  if (!dense || !values || !out)
    return fail("%s: expected a descriptor; got NULL", !dense ? "dense_shape" : !values ? "values" : "output");
  if (Options::read(filter_params, &p->options) != 0) return -1;
  View shape;
  size_t unused;
  if (read_view(*dense, Access::read, "dense_shape", &shape) != 0) return -1;
  switch (shape.layout) {
    case BNNSDataLayoutRowMajorMatrix:
    case BNNSDataLayout2DFirstMajor: p->columns_first = true; break;
    case BNNSDataLayoutColumnMajorMatrix:
    case BNNSDataLayout2DLastMajor: p->columns_first = false; break;
    default:
      return fail("dense_shape: expected layout RowMajorMatrix, ColumnMajorMatrix, 2DFirstMajor or 2DLastMajor; got %s",
                  name_of(shape.layout));
  }
  p->inputs = shape.extent[p->columns_first ? 0 : 1];
  p->outputs = shape.extent[p->columns_first ? 1 : 0];
  if (read_view(*values, Access::read, "values", &p->values) != 0 ||
      read_batch(p->values, p->values.data, 1, 0, Access::read, "values", &unused) != 0)
    return -1;
  p->count = p->values.count;
  if (out->layout != BNNSDataLayoutFullyConnectedSparse)
    return fail("output: expected layout FullyConnectedSparse; got 0x%x", static_cast<unsigned>(out->layout));
  if (out->size[0] != p->inputs || out->size[1] != p->outputs)
    return fail("output: expected size {%zu, %zu}, columns and rows; got {%zu, %zu}", p->inputs, p->outputs,
                out->size[0], out->size[1]);
  if (!is_float_type(out->data_type))
    return fail("output: expected float32, float16 or bfloat16; got %s", name_of(out->data_type));
  if (reinterpret_cast<uintptr_t>(out->data) % bytes_of(out->data_type) != 0)
    return fail("output: expected an address aligned to %zu bytes; got %p", bytes_of(out->data_type), out->data);
  if (!dense_bytes(p->outputs, p->inputs, out->data_type, &unused))
    return fail("output: expected a size that can be addressed; (%zu, %zu) overflows", p->outputs, p->inputs);
  return 0;
}

// Memory for the entries: NULL with a sentence when there is none.
Entry* get_entries(const Packing& p) {
  size_t bytes;
  if (__builtin_mul_overflow(p.count, sizeof(Entry), &bytes)) {
    fail("values: expected a number that can be sorted; got %zu", p.count);
    return nullptr;
  }
  return static_cast<Entry*>(p.options.get(bytes));
}

void put_value(BNNSDataType type, std::byte* values, size_t index, double value) {
  const float rounded = static_cast<float>(value);
  if (type == BNNSDataTypeFloat32) {
    std::memcpy(values + index * sizeof rounded, &rounded, sizeof rounded);
    return;
  }
  const uint16_t half = type == BNNSDataTypeFloat16 ? float16_of_float(rounded) : bfloat16_of_float(rounded);
  std::memcpy(values + index * sizeof half, &half, sizeof half);
}

void put_word(std::byte* words, size_t index, size_t value) {
  const auto word = static_cast<uint32_t>(value);
  std::memcpy(words + index * sizeof word, &word, sizeof word);
}

// Writes the entries, sorted here, into out->data, which is made when it is NULL. `apart` are the arrays read.
int pack(const Packing& p, Entry* entries, std::initializer_list<const View*> apart, BNNSNDArrayDescriptor* out) {
  std::sort(entries, entries + p.count, [](const Entry& a, const Entry& b) {
    return a.place != b.place ? a.place < b.place : a.index < b.index;
  });
  size_t places = 0;  // entries of one place are added
  for (size_t k = 0; k < p.count; ++k) places += k == 0 || entries[k].place != entries[k - 1].place;

  size_t dense;
  dense_bytes(p.outputs, p.inputs, out->data_type, &dense);
  const size_t compressed = compressed_bytes(p.outputs, p.inputs, places, out->data_type);
  const size_t bytes = std::min(dense, compressed);
  const bool is_dense = dense <= compressed;
  if (out->data) {
    const auto first = reinterpret_cast<uintptr_t>(out->data);
    for (const View* view : apart) {
      const auto other = reinterpret_cast<uintptr_t>(view->data);
      if (first < other + (view->span * bits_of(view->type) + 7) / 8 && other < first + dense)
        return fail("output: expected memory apart from what is packed; the two overlap");
    }
  } else {
    // without an allocator of the caller's, who then calls free
    out->data = p.options.alloc ? p.options.get(bytes) : std::malloc(bytes);
    if (!out->data) return fail("memory: %zu bytes could not be had", bytes);
  }
  auto* block = static_cast<std::byte*>(out->data);
  std::byte *starts = nullptr, *columns = nullptr, *values = block;
  if (is_dense) {
    std::memset(block, 0, dense);
  } else {
    const Header header = {kMark, bytes, p.outputs, p.inputs, static_cast<uint32_t>(places),
                           static_cast<uint32_t>(out->data_type)};
    std::memcpy(block, &header, sizeof header);
    starts = block + sizeof header;
    columns = starts + (p.outputs + 1) * sizeof(uint32_t);
    values = columns + places * sizeof(uint32_t);
  }
  size_t written = 0, started = 0;  // rows
  for (size_t k = 0; k < p.count;) {
    const size_t place = entries[k].place;
    double sum = 0.0;
    for (; k < p.count && entries[k].place == place; ++k) {
      double value;
      activation::ref::get_reals(values_of(p.values), offset_of(p.values, entries[k].index), 1, 1, &value);
      sum += value;
    }
    if (is_dense) {
      put_value(out->data_type, values, place, sum);
    } else {
      for (; started <= place / p.inputs; ++started) put_word(starts, started, written);
      put_word(columns, written, place % p.inputs);
      put_value(out->data_type, values, written, sum);
    }
    ++written;
  }
  if (!is_dense) {
    for (; started <= p.outputs; ++started) put_word(starts, started, written);
  }
  out->stride[kSparseBytesEntry] = bytes;
  return 0;
}

}  // namespace

// ---- reading packed weights ----

int Sparse::read(const BNNSNDArrayDescriptor& descriptor, const Options& options, Sparse* sparse) {
  const char* name = "weights";
  const size_t inputs = descriptor.size[0], outputs = descriptor.size[1], bytes = descriptor.stride[kSparseBytesEntry];
  const BNNSDataType type = descriptor.data_type;
  size_t dense;
  if (!is_float_type(type))
    return fail("%s: expected float32, float16 or bfloat16 for packed weights; got %s", name, name_of(type));
  if (!descriptor.data) return fail("%s: expected data; got NULL", name);
  if (inputs == 0 || outputs == 0 || !dense_bytes(outputs, inputs, type, &dense) || bytes == 0 || bytes > dense ||
      reinterpret_cast<uintptr_t>(descriptor.data) % bytes_of(type) != 0)
    return fail("%s: expected the descriptor that a sparsify function filled; got another", name);
  sparse->is_dense = bytes == dense;
  sparse->outputs = outputs;
  sparse->inputs = inputs;
  if (sparse->is_dense) return 0;

  Header header;
  if (bytes < sizeof header) return fail("%s: expected packed weights; got %zu bytes of something else", name, bytes);
  std::memcpy(&header, descriptor.data, sizeof header);
  if (header.mark != kMark || header.bytes != bytes || header.outputs != outputs || header.inputs != inputs ||
      header.type != static_cast<uint32_t>(type) ||
      compressed_bytes(outputs, inputs, header.count, type) != bytes)
    return fail("%s: expected packed weights of this shape and type; got something else", name);

  // The structure is always copied before it is looked at, so that nobody can change it afterwards.
  const size_t structure = (outputs + 1 + header.count) * sizeof(uint32_t), value_bytes = header.count * bytes_of(type);
  const size_t copied = structure + (options.use_client_ptr ? 0 : value_bytes);
  auto* copy = static_cast<std::byte*>(options.get(copied));
  if (!copy) return -1;
  const auto* block = static_cast<const std::byte*>(descriptor.data);
  std::memcpy(copy, block + sizeof header, copied);
  const auto* starts = reinterpret_cast<const uint32_t*>(copy);
  const uint32_t* columns = starts + outputs + 1;
  const bool in_order =
      starts[0] == 0 && starts[outputs] == header.count && std::is_sorted(starts, starts + outputs + 1);
  if (!in_order || std::any_of(columns, columns + header.count, [&](uint32_t column) { return column >= inputs; })) {
    options.release(copy);
    return fail("%s: expected packed weights; got damaged ones", name);
  }
  sparse->block = copy;
  sparse->starts = starts;
  sparse->columns = columns;
  const std::byte* values = (options.use_client_ptr ? block + sizeof header : copy) + structure;
  sparse->values = {{values, type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32}, header.count, 1, header.count};
  return 0;
}

// ---- the products ----

void SparseMultiply::place(Workspace* workspace) {
  if (sparse->values.values.type != BNNSDataTypeFloat32) values_ = workspace->take<float>(1, sparse->values.columns);
  if (bias && !bias->is_ready(1)) bias_ = workspace->take<float>(1, bias->columns);
  const size_t groups = divide_up(n, kSamples);
  group_floats_ = kSamples * (from.columns + to.columns) + std::max(from.columns, to.columns);
  groups_ = workspace->take<float>(groups, group_floats_);
}

void SparseMultiply::run() const {
  if (values_) load_row(sparse->values, 0, 0, sparse->values.columns, values_);
  if (bias_) load_row(*bias, 0, 0, bias->columns, bias_);
  parallel(divide_up(n, kSamples), threads_for(threads), kByte * n * sparse->values.columns, [&](size_t group) { run_group(group); });
}

// Samples side by side: from (k, 8) and to (k, 8). Missing ones are zeros.
void SparseMultiply::run_group(size_t group) const {
  float* source = groups_ + group * group_floats_;
  float* result = source + kSamples * from.columns;
  float* row = result + kSamples * to.columns;
  const size_t first = group * kSamples, samples = std::min(kSamples, n - first);
  std::fill_n(source, kSamples * (from.columns + to.columns), 0.0f);
  for (size_t s = 0; s < samples; ++s) {
    load_row(from, first + s, 0, from.columns, row);
    for (size_t k = 0; k < from.columns; ++k) source[k * kSamples + s] = row[k];
  }
  const float* values = values_ ? values_ : static_cast<const float*>(sparse->values.values.data);
  for (size_t o = 0; o < sparse->outputs; ++o) {
    for (size_t k = sparse->starts[o]; k < sparse->starts[o + 1]; ++k) {
      const size_t i = sparse->columns[k];
      const float* in = source + (is_forward ? i : o) * kSamples;
      float* out = result + (is_forward ? o : i) * kSamples;
      for (size_t s = 0; s < kSamples; ++s) out[s] += values[k] * in[s];
    }
  }
  const float* b = !bias ? nullptr : bias_ ? bias_ : static_cast<const float*>(bias->values.data);
  for (size_t s = 0; s < samples; ++s) {
    for (size_t k = 0; k < to.columns; ++k) row[k] = result[k * kSamples + s] + (b ? b[k] : 0.0f);
    if (activation) activation->forward(row, to.columns);
    store_row(to, first + s, 0, to.columns, row, accumulate);
  }
}

}  // namespace obn::fully_connected

// ---- the C interface ----

using namespace obn;
using namespace obn::fully_connected;

extern "C" {

int BNNSNDArrayFullyConnectedSparsifySparseCOO(const BNNSNDArrayDescriptor* in_dense_shape,
                                               const BNNSNDArrayDescriptor* in_indices,
                                               const BNNSNDArrayDescriptor* in_values, BNNSNDArrayDescriptor* out,
                                               const BNNSSparsityParameters*, size_t, void*, size_t,
                                               const BNNSFilterParameters* filter_params) {
  Packing p;
  View indices;
  if (check_packing(in_dense_shape, in_values, out, filter_params, &p) != 0 ||
      read_integers(in_indices, "indices", &indices) != 0)
    return -1;
  if (indices.count / 2 != p.count || indices.count % 2 != 0)
    return fail("indices: expected two for each of %zu values; got %zu", p.count, indices.count);
  Entry* entries = get_entries(p);
  if (!entries) return -1;
  int status = 0;
  for (size_t k = 0; k < p.count && status == 0; ++k) {
    size_t o = 0, i = 0;
    status = get_index(indices, 2 * k + (p.columns_first ? 1 : 0), p.outputs, "indices", &o);
    if (status == 0) status = get_index(indices, 2 * k + (p.columns_first ? 0 : 1), p.inputs, "indices", &i);
    if (status == 0) entries[k] = {o * p.inputs + i, k};
  }
  if (status == 0) status = pack(p, entries, {&indices, &p.values}, out);
  p.options.release(entries);
  return status;
}

int BNNSNDArrayFullyConnectedSparsifySparseCSR(const BNNSNDArrayDescriptor* in_dense_shape,
                                               const BNNSNDArrayDescriptor* in_column_indices,
                                               const BNNSNDArrayDescriptor* in_row_starts,
                                               const BNNSNDArrayDescriptor* in_values, BNNSNDArrayDescriptor* out,
                                               const BNNSSparsityParameters*, size_t, void*, size_t,
                                               const BNNSFilterParameters* filter_params) {
  Packing p;
  View columns, starts;
  if (check_packing(in_dense_shape, in_values, out, filter_params, &p) != 0 ||
      read_integers(in_column_indices, "column_indices", &columns) != 0 ||
      read_integers(in_row_starts, "row_starts", &starts) != 0)
    return -1;
  if (columns.count != p.count)
    return fail("column_indices: expected one for each of %zu values; got %zu", p.count, columns.count);
  if (starts.count != p.outputs && starts.count - 1 != p.outputs)
    return fail("row_starts: expected %zu or %zu; got %zu", p.outputs, p.outputs + 1, starts.count);
  Entry* entries = get_entries(p);
  if (!entries) return -1;
  int status = 0;
  size_t k = 0;
  for (size_t o = 0; o < p.outputs && status == 0; ++o) {
    size_t first = 0, end = p.count;
    status = get_index(starts, o, p.count + 1, "row_starts", &first);
    if (status == 0 && o + 1 < starts.count)
      status = get_index(starts, o + 1, p.count + 1, "row_starts", &end);
    if (status == 0 && (first != k || end < first || (o + 1 == p.outputs && end != p.count)))
      status = fail("row_starts: expected 0 first, %zu last and no step back; got %zu and %zu for row %zu", p.count,
                    first, end, o);
    for (; k < end && status == 0; ++k) {
      size_t i = 0;
      status = get_index(columns, k, p.inputs, "column_indices", &i);
      if (status == 0) entries[k] = {o * p.inputs + i, k};
    }
  }
  if (status == 0) status = pack(p, entries, {&columns, &starts, &p.values}, out);
  p.options.release(entries);
  return status;
}
}
