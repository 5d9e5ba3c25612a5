// The gradients of the arithmetic layer. Letters as in arithmetic.h.
//
// A gradient of the output's own shape is written block by block. One of a smaller shape (a broadcast input, a
// parameter of the batch) is a sum: its values fall into units that are summed independently, each over its terms in
// their order; where there are few units the terms are split, into parts that depend on shapes only.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "arithmetic/arithmetic.h"
#include "arithmetic/arithmetic_blocks.h"
#include "base/integer.h"
#include "base/memory.h"
#include "base/pool.h"

namespace obn::arithmetic {

namespace {

constexpr size_t kMaxParts = 64;  // pieces of a sum

// The tensors a gradient is computed from, by their numbers in a walk.
struct Reads {
  size_t tensor[kSources];  // kNone: not read
};
constexpr size_t kNone = SIZE_MAX;

// needed: inputs, as bits.
Reads add_sources(const BackwardCall& call, unsigned needed, Blocks* blocks) {
  Reads reads;
  std::fill_n(reads.tensor, kSources, kNone);
  for (size_t k = 0; k < kInputs; ++k)
    if ((needed >> k & 1) && !call.from_y) reads.tensor[k] = blocks->add(call.x[k]);
  if (call.y.data) reads.tensor[kY] = blocks->add(call.y);
  reads.tensor[kDz] = blocks->add(call.dy);
  return reads;
}

// All sources in block b, with dz = dy · act'(y).
Sources read_sources(const Reads& reads, const activation::Fused& activation, Walker& walker, size_t b, size_t n) {
  Sources sources = no_sources();
  for (size_t s = 0; s < kSources; ++s)
    if (reads.tensor[s] != kNone) sources.p[s] = walker.read(reads.tensor[s], b, &sources.moves[s]);
  if (activation.is_identity()) return sources;
  float *y = walker.extra(0), *dz = walker.extra(1);
  for (auto [row, s] : {std::pair{y, kY}, std::pair{dz, kDz}}) {
    if (sources.moves[s]) {
      std::copy_n(sources.p[s], n, row);
    } else {
      std::fill_n(row, n, *sources.p[s]);
    }
  }
  activation.backward(y, dz, n);
  sources.p[kDz] = dz;
  sources.moves[kDz] = true;
  return sources;
}

}  // namespace

size_t Plan::work_bytes() const {
  bool has_sums = false;
  for (size_t k = 0; k < inputs_; ++k) {
    has_sums |= x_role_[k] == BNNSParameter && y_role_ == BNNSSample;
    has_sums |= x_role_[k] != BNNSConstant && x_[k].count != y_.count;
  }
  if (!has_sums) return 0;
  const size_t block = activation_.is_elementwise() ? kBlock : std::max(kBlock, y_.extent[y_.axis_of_size[0]]);
  return kMaxParts * block * sizeof(double);
}

// dx gathers several values of the output.
bool Plan::reduces(const Operand& dx, size_t batch) const {
  if (batch > 1 && dx.step == 0) return true;
  for (size_t k = 0; k < y_.rank; ++k)
    if (dx.view->extent[k] != y_.extent[k]) return true;
  return false;
}

bool Plan::outputs_are_accepted(const BackwardCall& call) const {
  Blocks blocks;
  const size_t y = blocks.add(call.y);
  blocks.arrange(y_, call.batch, kNoAxis);
  blocks.cut(kBlock);
  bool accepted = true;
  for_blocks(blocks, *kernels_, 1, [&](Walker& walker, size_t b) {
    bool moves;
    const float* row = walker.read(y, b, &moves);
    accepted = accepted && activation_.accepts(row, moves ? blocks.values(b) : 1);
  });
  return accepted;
}

namespace {

// The gradient of the one input in `inputs` is dz itself, which lies there as a row.
bool is_dz(Function f, unsigned inputs, const Sources& sources) {
  if (!sources.moves[kDz]) return false;
  switch (f) {
    case BNNSArithmeticAdd: return inputs == 1 || inputs == 2;
    case BNNSArithmeticSubtract: return inputs == 1;
    case BNNSArithmeticMultiplyAdd: return inputs == 4;
    default: return false;
  }
}

}  // namespace

// row (n) = the sum of the gradients of `inputs`, returned; other (n) is overwritten.
const float* Plan::gradient_row(const BackwardCall& call, unsigned inputs, const Sources& sources, float* row,
                                float* other, size_t n) const {
  bool is_first = true;
  for (size_t k = 0; k < inputs_; ++k) {
    if (!(inputs >> k & 1)) continue;
    const Row gradient = call.from_y ? kernels_->gradient_from_y[function_] : kernels_->gradient[function_][k];
    gradient(sources, is_first ? row : other, n);
    if (!is_first) kernels_->add(other, row, n);
    is_first = false;
  }
  return row;
}

void Plan::run(const BackwardCall& call, std::byte* work) const {
  if (call.batch == 0) return call.clear_sums();
  // Sums first: what is written in place of an argument comes after all that read it. The last sum and the others are
  // had in one pass.
  size_t sums = 0, done = 0;
  for (size_t t = 0; t < call.targets; ++t) sums += reduces(call.dx[t], call.batch);
  for (size_t t = 0; t < call.targets; ++t)
    if (reduces(call.dx[t], call.batch)) sum_gradient(call, t, ++done == sums, work);
  if (sums == 0) write_gradients(call);
}

// The gradients of the output's own shape, as tensors of a walk.
struct Written {
  size_t tensor[kInputs];  // of target t; kNone: it is none of them
  unsigned inputs = 0;     // whose gradients they are, as bits
  bool in_place = false;   // one takes the place of a source
  bool streams = false;
};

namespace {

void add_written(const BackwardCall& call, Blocks* blocks, Written* written) {
  for (size_t t = 0; t < call.targets; ++t) {
    if (written->tensor[t] == kNone) continue;
    const size_t tensor = written->tensor[t] = blocks->add(call.dx[t]);
    for (size_t s = 0; s < tensor; ++s) written->in_place |= blocks->data[s] == call.dx[t].data;
  }
}

}  // namespace

// The kernel that puts a gradient where it belongs at once; NULL: none does.
Row Plan::streamed_gradient(const BackwardCall& call, const Written& written, size_t t) const {
  if (!written.streams || call.from_y || call.dx_view[t].accumulate) return nullptr;
  for (size_t k = 0; k < inputs_; ++k)
    if (call.sources[t] == 1u << k) return kernels_->streamed_gradient[function_][k];
  return nullptr;
}

// Block b of all of them.
void Plan::write_block(const BackwardCall& call, const Written& written, const Sources& sources, Walker& walker,
                       size_t b, size_t n) const {
  const float* rows[kInputs];
  for (size_t t = 0; t < call.targets; ++t) {
    const size_t tensor = written.tensor[t];
    if (tensor == kNone) continue;
    const bool is_direct = !written.in_place && !written.streams && !call.dx_view[t].accumulate;
    float* row = is_direct ? walker.place(tensor, b) : walker.buffer(tensor);
    if (const Row streamed = streamed_gradient(call, written, t); streamed && walker.is_direct(tensor)) {
      rows[t] = row = walker.place(tensor, b);
      streamed(sources, row, n);
      continue;
    }
    // dz may be overwritten by another gradient
    rows[t] = !written.in_place && is_dz(function_, call.sources[t], sources)
                  ? sources.p[kDz]
                  : gradient_row(call, call.sources[t], sources, row, walker.extra(2), n);
  }
  for (size_t t = 0; t < call.targets; ++t) {
    const size_t tensor = written.tensor[t];
    if (tensor == kNone) continue;
    if (call.dx_view[t].accumulate) {
      walker.read_into(tensor, b, walker.extra(2));
      kernels_->add(rows[t], walker.extra(2), n);
      rows[t] = walker.extra(2);
    }
    walker.write(tensor, b, rows[t], written.streams);
  }
}

void Plan::write_gradients(const BackwardCall& call) const {
  Written written;
  for (size_t t = 0; t < call.targets; ++t) {
    written.tensor[t] = 0;
    written.inputs |= call.sources[t];
  }
  Blocks blocks;
  const Reads reads = add_sources(call, needs(written.inputs), &blocks);
  add_written(call, &blocks, &written);
  const bool is_row_wise = !activation_.is_elementwise();
  blocks.arrange(y_, call.batch, is_row_wise ? y_.axis_of_size[0] : kNoAxis);
  blocks.cut(is_row_wise ? blocks.group_count : kBlock);
  written.streams = !written.in_place && blocks.is_large();
  for_blocks(blocks, *kernels_, threads_, [&](Walker& walker, size_t b) {
    const size_t n = blocks.values(b);
    write_block(call, written, read_sources(reads, activation_, walker, b, n), walker, b, n);
  });
}

namespace {

// Adds n values to one sum (stride 0) or to n. Short runs are not worth a call.
void add_run(const Kernels& kernels, const float* row, size_t n, double* total, size_t stride) {
  if (n >= kGroup && stride == 0) {
    *total += kernels.sum(row, n);
  } else if (n >= kGroup) {
    kernels.add_to_doubles(row, total, n);
  } else if (stride == 0) {
    float sum = 0.0f;
    for (size_t i = 0; i < n; ++i) sum += row[i];
    *total += sum;
  } else {
    for (size_t i = 0; i < n; ++i) total[i] += row[i];
  }
}

// Where the values of a unit lie in tensor t: body(index, offset, count, stride) for runs along the fastest axis of the
// group that t has; index counts the values of the unit, offset is that of block b.
template <class Body>
void for_kept(const Blocks& blocks, size_t t, size_t b, size_t offset, const Body& body) {
  const TensorLoops& loops = blocks.loops;
  size_t extent[TensorLoops::kAxes], at[TensorLoops::kAxes] = {}, count = 1, first = 0;
  for (size_t k = 0; k < blocks.group; ++k) {
    const size_t all = k + 1 < blocks.group ? loops.extent[k] : blocks.values(b) / blocks.inner;
    extent[k] = loops.stride[k][t] != 0 ? all : 1;
    if (count == 1) first = k;
    count *= extent[k];
  }
  for (size_t i = 0; i < count; i += extent[first]) {
    body(i, offset, extent[first], loops.stride[first][t]);
    for (size_t k = first + 1; k < blocks.group; ++k) {
      offset += loops.stride[k][t];
      if (++at[k] < extent[k]) break;
      offset -= at[k] * loops.stride[k][t];
      at[k] = 0;
    }
  }
}

}  // namespace

// One gradient that is a sum; the gradients that are none may be written on the way.
void Plan::sum_gradient(const BackwardCall& call, size_t target, bool writes_others, std::byte* work) const {
  Written written;
  for (size_t k = 0; k < call.targets; ++k) {
    const bool is_written = writes_others && !reduces(call.dx[k], call.batch);
    written.tensor[k] = is_written ? 0 : kNone;
    if (is_written) written.inputs |= call.sources[k];
  }
  Blocks blocks;
  const Reads reads = add_sources(call, needs(call.sources[target] | written.inputs), &blocks);
  add_written(call, &blocks, &written);
  const size_t t = blocks.add(call.dx[target]);
  const bool is_row_wise = !activation_.is_elementwise();
  blocks.arrange(y_, call.batch, is_row_wise ? y_.axis_of_size[0] : kNoAxis);
  blocks.cut(is_row_wise ? blocks.group_count : kBlock);
  written.streams = written.inputs != 0 && !written.in_place && blocks.is_large();
  const size_t sums = blocks.move_sums_first(t);

  // Within a block the values of a unit are numbered fastest axis first: one more tensor of the walk, so to say.
  TensorLoops& loops = blocks.loops;
  const size_t numbers = loops.tensors++;
  size_t width = 1;  // values of a unit in a block
  for (size_t k = 0; k < loops.rank; ++k) {
    const bool is_kept = k < blocks.group && loops.stride[k][t] != 0;
    loops.stride[k][numbers] = is_kept ? width : 0;
    if (is_kept) width *= k + 1 < blocks.group ? loops.extent[k] : blocks.block / blocks.inner;
  }
  const bool keeps_all = width == blocks.block;
  const bool is_rows = blocks.group == 2 && !keeps_all;
  const bool sums_rows = is_rows && loops.stride[0][numbers] == 0 && loops.stride[1][numbers] == 1;
  const bool sums_columns = is_rows && loops.stride[0][numbers] == 1 && loops.stride[1][numbers] == 0;

  // Unit u is made of `terms` blocks. Where the last axis of the group is summed, its blocks are terms of one unit.
  const bool has_units_in_group = loops.stride[blocks.group - 1][t] != 0;
  const size_t units = blocks.outer / sums * (has_units_in_group ? blocks.blocks : 1);
  const size_t terms = sums * (has_units_in_group ? 1 : blocks.blocks);
  const auto add_terms = [&](Walker& walker, size_t unit, size_t first, size_t count, double* total) {
    std::fill_n(total, width, 0.0);
    const size_t term_blocks = has_units_in_group ? 1 : blocks.blocks;
    size_t b = has_units_in_group ? unit % blocks.blocks : first % term_blocks;
    walker.seek((has_units_in_group ? unit / blocks.blocks : unit) * sums + first / term_blocks);
    for (; count > 0; --count) {
      const size_t n = blocks.values(b);
      const Sources sources = read_sources(reads, activation_, walker, b, n);
      const unsigned inputs = call.sources[target];
      const float* row = is_dz(function_, inputs, sources)
                             ? sources.p[kDz]
                             : gradient_row(call, inputs, sources, walker.extra(2), walker.extra(3), n);
      if (keeps_all) {
        kernels_->add_to_doubles(row, total, n);
      } else if (sums_rows) {
        kernels_->sum_rows(row, n / loops.extent[0], loops.extent[0], total);
      } else if (sums_columns) {
        kernels_->sum_columns(row, n / loops.extent[0], loops.extent[0], total);
      } else {
        walker.runs(numbers, n, [&](size_t i, size_t number, size_t values, size_t stride) {
          add_run(*kernels_, row + i, values, total + number, stride);
        });
      }
      if (written.inputs != 0) write_block(call, written, sources, walker, b, n);
      if (!has_units_in_group && ++b < blocks.blocks) continue;
      if (!has_units_in_group) b = 0;
      walker.step();
    }
    if (written.streams) kernels_->end_streams();
  };
  const auto put = [&](Walker& walker, size_t unit, const double* total) {
    const size_t b = has_units_in_group ? unit % blocks.blocks : 0;
    walker.seek((has_units_in_group ? unit / blocks.blocks : unit) * sums);
    float *row = walker.extra(2), *old = walker.extra(3);
    for_kept(blocks, t, b, walker.offset_of(t, b), [&](size_t i, size_t offset, size_t n, size_t stride) {
      std::transform(total + i, total + i + n, row, [](double v) { return static_cast<float>(v); });
      if (call.dx_view[target].accumulate) {
        kernels_->load(blocks.type, walker.here(t, offset), stride, n, old);
        kernels_->add(old, row, n);
      }
      kernels_->store(blocks.type, walker.here(t, offset), stride, n, row);
    });
  };

  const size_t wanted = std::clamp<size_t>(blocks.outer * blocks.group_count / kPiece, 1, kMaxParts);
  const size_t parts = units >= wanted ? 1 : std::min(terms, wanted / units);
  if (parts == 1) {
    by_pieces(units, divide_up(units, wanted), threads_, [&](size_t first, size_t count) {
      Walker walker(blocks, *kernels_);
      for (size_t unit = first; unit < first + count; ++unit) {
        add_terms(walker, unit, 0, terms, walker.sums());
        put(walker, unit, walker.sums());
      }
    });
    return;
  }
  double* partial = reinterpret_cast<double*>(work);  // (units, parts, width)
  by_pieces(units * parts, 1, threads_, [&](size_t piece, size_t) {
    Walker walker(blocks, *kernels_);
    const size_t part = piece % parts, first = terms * part / parts, last = terms * (part + 1) / parts;
    add_terms(walker, piece / parts, first, last - first, partial + piece * width);
  });
  Walker walker(blocks, *kernels_);
  for (size_t unit = 0; unit < units; ++unit) {
    double* total = partial + unit * parts * width;
    for (size_t i = width; i < parts * width; ++i) total[i % width] += total[i];
    put(walker, unit, total);
  }
}

}  // namespace obn::arithmetic
