// Conversion between data types, and the functions of integers. Letters as in activation.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "activation/activation_filter.h"
#include "activation/activation_walk.h"
#include "base/types.h"

namespace obn::activation {

namespace {

// Sub-byte outputs share bytes between neighbours: one thread.
size_t piece_for(BNNSDataType output, size_t total) { return bytes_of(output) == 0 ? total : kPiece; }

}  // namespace

// Identity between types of which at least one is not floating point.
void Activation::convert(const Operand& in, const Operand& out, size_t batch) const {
  const Walk x = in.walk(batch), y = out.walk(batch);
  const size_t total = batch * x_.count;
  const ref::Values from_values = values_of(x_, x), to_values = values_of(y_, y);
  // 64 bits do not fit into a double: such values stay whole numbers when they are.
  const bool whole = ref::is_whole(from_values) &&
                     (bits_of(is_indexed(x_.type) ? x_.table_type : x_.type) == 64 || bits_of(y_.type) == 64);
  by_pieces(total, piece_for(y_.type, total), options().threads, [&](size_t first, size_t count) {
    Cursor from(x, first), to(y, first);
    double row[kBlock];
    for (size_t done = 0; done < count;) {
      size_t n = std::min({count - done, kBlock, from.run(), to.run()});
      if (whole) {
        for (size_t i = 0; i < n; ++i)
          ref::put_whole(to_values, to.offset() + i * y.stride[0],
                         ref::get_whole(from_values, from.offset() + i * x.stride[0]));
      } else {
        ref::get_reals(from_values, from.offset(), x.stride[0], n, row);
        ref::put_reals(to_values, to.offset(), y.stride[0], n, row);
      }
      from.advance(n);
      to.advance(n);
      done += n;
    }
  });
}

// y = sat((scale·x + offset) >> shift), on the stored integers
void Activation::convert_integers(const Operand& in, const Operand& out, size_t batch) const {
  const Walk x = in.walk(batch), y = out.walk(batch);
  const size_t total = batch * x_.count;
  const ref::Values from_values = values_of(x_, x), to_values = values_of(y_, y);
  by_pieces(total, piece_for(y_.type, total), options().threads, [&](size_t first, size_t count) {
    Cursor from(x, first), to(y, first);
    for (size_t i = first; i < first + count; ++i) {
      const int32_t* of_channel = integers_ + i / channel_values_ % channels_;
      ref::Whole value = ref::integer_linear(ref::get_stored(from_values, from.offset()), of_channel[0],
                                             of_channel[channels_], of_channel[2 * channels_]);
      ref::put_stored(to_values, to.offset(), value);
      from.advance(1);
      to.advance(1);
    }
  });
}

}  // namespace obn::activation
