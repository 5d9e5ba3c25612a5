// Direct convolution, the plans: which taps meet which outputs, how large the blocks are, and the walk over the pieces.
// See direct.h for the idea.
#include "convolution/direct/direct.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/pool.h"
#include "base/workspace.h"

namespace obn::convolution::direct {

namespace {

constexpr size_t kScratchFloats = kScratchBytes / sizeof(float);
constexpr size_t kSlack = 2 * kFrameSlack;              // with what rounding to cache lines needs
constexpr size_t kSoftFloats = size_t{96} << 10;        // a frame that leaves room in a second cache of 1 MiB
constexpr size_t kHardFloats = kScratchFloats / 8 * 5;  // a frame when it must be
constexpr size_t kSumFloats = size_t{96} << 10;         // sums of one piece of the weight gradient
constexpr size_t kPixels = 512;                         // of a block, about
constexpr size_t kStripPixels = 128;                    // of a strip of a long row
constexpr size_t kDepth = 256;                          // values of k done in a row with pixels in lanes: their
                                                        // weights stay in the first cache
constexpr size_t kTurnedDepth = 1024;                   // with outputs in lanes, where weights are streamed
constexpr size_t kPieces = 16;                          // enough to keep a few threads busy
constexpr size_t kCopies = 8;                           // pieces that are enough where each more copies a frame again
constexpr size_t kSmallCall = size_t{1} << 20;          // multiplications of a call that is not cut further
constexpr size_t kMaxPhases = 4096;
constexpr size_t kMaxParts = 8;                         // of the pixels in the weight gradient
constexpr size_t kMaxSums = size_t{4} << 20;            // floats of all parts together

double work_of(const Problem& s) { return 1.5 * kMultiplyAdd * s.multiplications(); }

size_t as_size(int64_t v) { return static_cast<size_t>(v); }
int64_t floor_divide(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// ---- taps ----

// The axis without its arrays; slots may be more than there are.
Taps outline(const Axis& axis, bool is_gradient) {
  Taps t{};
  t.in = is_gradient ? axis.out : axis.in;
  t.out = is_gradient ? axis.in : axis.out;
  t.step = is_gradient ? 1 : axis.stride;
  t.phases = is_gradient ? std::min(axis.stride, axis.in) : 1;
  t.slots = as_size(std::min(t.step, axis.kernel));
  return t;
}

// The only phase that may have tap k; it may be one that does not exist.
int64_t phase_of_tap(const Axis& axis, bool is_gradient, int64_t k) {
  if (!is_gradient) return 0;
  const int64_t ahead = axis.dilation * k - axis.before;
  return ahead - floor_divide(ahead, axis.stride) * axis.stride;
}

// Where tap k of the phase lies from a position, in input values; false: it never meets the image.
bool find_shift(const Axis& axis, bool is_gradient, const Taps& t, int64_t phase, int64_t k, int64_t* shift) {
  if (is_gradient) {
    const int64_t distance = phase + axis.before - axis.dilation * k;
    if (distance % axis.stride != 0) return false;
    *shift = distance / axis.stride;
  } else {
    *shift = axis.dilation * k - axis.before;
  }
  const int64_t i = std::max<int64_t>(0, -floor_divide(*shift, t.step));  // the first position inside, if any
  return i < static_cast<int64_t>(t.count(as_size(phase))) && t.step * i + *shift < t.in;
}

// Calls body(phase, k, shift) for every tap that meets the image, phase by phase.
template <class Body>
void for_taps(const Axis& axis, bool is_gradient, const Taps& t, const Body& body) {
  for (int64_t phase = 0; phase < t.phases; ++phase) {
    for (int64_t k = 0; k < axis.kernel; ++k) {
      int64_t shift;
      if (find_shift(axis, is_gradient, t, phase, k, &shift)) body(phase, k, shift);
    }
  }
}

// Not phase by phase: filters are created with this, and there may be as many phases as an image has columns.
void find_span(const Axis& axis, bool is_gradient, Taps* t) {
  int64_t low = INT64_MAX, high = INT64_MIN;
  for (int64_t k = 0; k < axis.kernel; ++k) {
    const int64_t phase = phase_of_tap(axis, is_gradient, k);
    int64_t shift;
    if (phase >= t->phases || !find_shift(axis, is_gradient, *t, phase, k, &shift)) continue;
    const int64_t at = floor_divide(shift, t->step);
    low = std::min(low, at);
    high = std::max(high, at);
  }
  t->first = low <= high ? low : 0;
  t->span = low <= high ? high - low + 1 : 1;
}

// The arrays of an outlined axis. Every tap of the kernel belongs to at most one phase, so there are at most `kernel`.
void take_taps(const Axis& axis, Taps* t, Workspace* workspace) {
  t->taps = workspace->take<Tap>(as_size(axis.kernel));
  t->remainders = workspace->take<int64_t>(t->slots);
  t->begin = workspace->take<size_t>(as_size(t->phases) + 1);
}

void list_taps(const Axis& axis, bool is_gradient, Taps* taps) {
  Taps& t = *taps;
  find_span(axis, is_gradient, &t);
  t.slots = 0;
  std::fill_n(t.begin, t.phases + 1, 0);
  size_t n = 0;
  for_taps(axis, is_gradient, t, [&](int64_t phase, int64_t k, int64_t shift) {
    const int64_t at = floor_divide(shift, t.step), remainder = shift - at * t.step;
    const size_t slot = as_size(std::find(t.remainders, t.remainders + t.slots, remainder) - t.remainders);
    if (slot == t.slots) t.remainders[t.slots++] = remainder;
    t.taps[n++] = {k, slot, as_size(at - t.first)};
    t.begin[phase + 1] = n;
  });
  for (int64_t phase = 0; phase < t.phases; ++phase) t.begin[phase + 1] = std::max(t.begin[phase + 1], t.begin[phase]);
}

// A kernel of one tap on images without gaps sees an image as one row.
bool is_flat_axis(const Axis& a) { return a.kernel == 1 && a.stride == 1 && a.before == 0 && a.in == a.out; }
bool is_flat(const Problem& s, const Planes& in, const Planes& out) {
  return is_flat_axis(s.x) && is_flat_axis(s.y) && (s.y.in == 1 || (in.row == as_size(s.x.in) && out.row == in.row));
}
Problem flatten(Problem s) {
  s.x.in = s.x.out = s.x.in * s.y.in;
  s.y.in = s.y.out = 1;
  return s;
}

// ---- blocks ----

void measure(const Taps& x, const Taps& y, Block* b) {
  b->row_blocks = divide_up(y.count(), b->rows);
  b->rows = divide_up(y.count(), b->row_blocks);
  b->column_blocks = divide_up(x.count(), b->columns);
  b->pitch = b->columns + as_size(x.span) - 1;
  b->slot = (b->rows + as_size(y.span) - 1) * b->pitch;
  b->channel = std::max<size_t>(1, x.slots * y.slots) * b->slot;
}

// Where only single values are read from a frame, its rows may begin on cache lines: copies then write whole lines. Not
// where that needs much more memory. An odd number of lines per channel spreads channels over the cache.
void align_frame(Block* b) {
  constexpr size_t kLine = kAlignment / sizeof(float);
  const size_t pitch = round_up(b->pitch, kLine);
  if (pitch - b->pitch > pitch / 8 || 2 * b->channel > kHardFloats) return;
  b->slot = b->slot / b->pitch * pitch;
  b->channel = b->channel / b->pitch * pitch;
  b->pitch = pitch;
  b->channel = (b->channel / kLine | 1) * kLine;
}

// About `pixels` positions, fewer while the frames of `channels` channels and `others` values per position take more
// than `soft`.
Block choose_block(const Taps& x, const Taps& y, size_t pixels, size_t channels, size_t others, size_t soft,
                   size_t columns_unit) {
  Block b{};
  b.columns = divide_up(x.count(), divide_up(x.count(), pixels));
  if (b.columns < x.count()) b.columns = round_up(b.columns, columns_unit);
  b.rows = std::clamp<size_t>(pixels / (b.columns + as_size(x.span) - 1), 1, y.count());
  measure(x, y, &b);
  while (channels * b.channel + others * b.rows * b.columns > soft) {
    if (b.rows > 1) {
      b.rows = divide_up(b.rows, 2);
    } else if (b.columns > 2 * columns_unit) {
      b.columns = round_up(divide_up(b.columns, 2), columns_unit);
    } else {
      break;
    }
    measure(x, y, &b);
  }
  b.channels = channels;
  return b;
}

// ---- forward and input gradient ----

// A tile of one vector takes more than half the time of one of two: it reads as many weights.
size_t cost_of_run(const Kernels& kernels, size_t n) {
  const size_t tail = n % kernels.tile_columns;
  return n / kernels.tile_columns * 4 + (tail == 0 ? 0 : tail <= kernels.lanes ? 3 : 4);
}

size_t run_length(const Block& b) { return (b.rows - 1) * b.pitch + b.columns; }

// Chooses what lies across the lanes, by the lanes that are spent on nothing; a tie goes to the way without sums in
// scratch.
void choose_lanes(const Kernels& kernels, Correlation* c) {
  const Block& b = c->block;
  const size_t by_rows = b.rows * cost_of_run(kernels, b.columns), in_one = cost_of_run(kernels, run_length(b));
  c->by_rows = by_rows <= in_one;
  c->in_place = c->by_rows && c->x.phases == 1;
  const size_t filled = round_up(c->out_channels, kernels.tile_columns);
  // lanes for one value: pixels across cost / 4 · tile_columns / (rows · columns), outputs across filled / out_channels
  const size_t pixels_across = std::min(by_rows, in_one) * kernels.tile_columns * c->out_channels;
  const size_t outputs_across = filled * 4 * b.rows * b.columns;
  c->outputs_in_lanes = c->in_place ? outputs_across < pixels_across : outputs_across <= pixels_across;
  // sums in scratch twice, and a frame that may yet be aligned
  const size_t run = as_size(c->x.phases) * round_up(run_length(b), kernels.tile_columns);
  if (3 * run * kernels.tile_columns > kScratchFloats - kHardFloats) c->outputs_in_lanes = false;
  if (c->outputs_in_lanes) c->by_rows = c->in_place = false;
  c->panels = divide_up(c->out_channels, c->outputs_in_lanes ? kernels.tile_columns : kernels.tile_rows);
}

size_t column_pieces(const Correlation& c) { return divide_up(c.block.column_blocks, c.blocks_at_once); }

// Fills block and what follows from it; false where scratch cannot hold it.
bool plan_blocks(const Kernels& kernels, size_t threads, Correlation* c) {
  const size_t x_phases = as_size(c->x.phases);
  if (x_phases * as_size(c->y.phases) > kMaxPhases) return false;
  const bool is_long = c->is_flat && c->x.count() > kPixels;
  const size_t pixels = is_long ? kStripPixels : std::max(kernels.tile_columns, kPixels / x_phases);
  Block& b = c->block;
  b = choose_block(c->x, c->y, pixels, c->in_channels, 0, kSoftFloats, kernels.tile_columns);
  choose_lanes(kernels, c);
  if (c->outputs_in_lanes) align_frame(&b);
  b.channels = std::min(c->in_channels, (kHardFloats - kSlack) / b.channel);
  if (b.channels == 0) return false;
  // Sums of a panel; with outputs in lanes they are turned in a second place of the same size.
  const size_t run = x_phases * round_up(run_length(b), kernels.tile_columns);
  const size_t panel = run * (c->outputs_in_lanes ? kernels.tile_columns : kernels.tile_rows);
  const size_t slack = kernels.lanes * kernels.tile_columns;  // read behind the last one
  const size_t places = (kScratchFloats - kHardFloats - slack) / panel;
  if (places < 2) return false;
  const size_t blocks = c->batch * c->groups * b.row_blocks * b.column_blocks;
  const size_t strip = c->in_channels * round_up(b.columns, kernels.tile_columns);
  c->in_strips = c->is_flat && c->in_place && strip <= kHardFloats;
  if (c->in_strips) b.channel = kernels.tile_columns;
  c->blocks_at_once = c->in_strips ? std::clamp<size_t>(blocks / std::max(kPieces, 4 * threads), 1, b.column_blocks) : 1;
  const size_t pieces = column_pieces(*c) * c->batch * c->groups * b.row_blocks;
  const size_t multiplications = blocks * b.rows * b.columns * c->w_group;
  c->parts = multiplications < kSmallCall ? 1 : std::min(c->panels, divide_up(std::max(kCopies, threads), pieces));
  if (b.channels < c->in_channels && !c->in_place) c->parts = std::max(c->parts, divide_up(c->panels, places - 1));
  return true;
}

Correlation outline(const Problem& s, bool is_gradient) {
  Correlation c{};
  c.batch = s.batch;
  c.groups = s.groups;
  c.in_channels = (is_gradient ? s.out_channels : s.in_channels) / s.groups;
  c.out_channels = (is_gradient ? s.in_channels : s.out_channels) / s.groups;
  const size_t taps = as_size(s.x.kernel * s.y.kernel);
  c.w_in = is_gradient ? c.out_channels * taps : taps;
  c.w_out = is_gradient ? taps : c.in_channels * taps;
  c.w_group = c.in_channels * c.out_channels * taps;
  c.kernel_columns = as_size(s.x.kernel);
  c.x = outline(s.x, is_gradient);
  c.y = outline(s.y, is_gradient);
  return c;
}

bool fits(const Kernels& kernels, const Problem& s, bool is_gradient) {
  Correlation c = outline(s, is_gradient);
  find_span(s.x, is_gradient, &c.x);
  find_span(s.y, is_gradient, &c.y);
  return plan_blocks(kernels, 1, &c);
}

// Whole channels, at least one.
size_t channels_at_once(const Correlation& c, size_t taps) {
  const size_t depth = c.outputs_in_lanes ? kTurnedDepth : kDepth;
  return std::clamp<size_t>(depth / std::max<size_t>(1, taps), 1, c.in_channels);
}

// At most: a phase has those of kTurnedDepth values of k, or of one channel.
size_t offsets_of(const Correlation& c, size_t taps) {
  const size_t phases = std::min(as_size(c.x.phases * c.y.phases), taps);
  return std::min(phases * kTurnedDepth, c.in_channels * taps) + taps;
}

// At most, with zeros up to whole panels.
size_t packed_floats(const Kernels& kernels, const Correlation& c, size_t taps) {
  return c.groups * round_up(c.out_channels, kernels.tile_columns) * c.in_channels * taps;
}

struct PhaseArrays {
  Phase* phases;
  size_t* offsets;
};

// All arrays of an outlined correlation.
PhaseArrays take_arrays(const Kernels& kernels, const Problem& s, Correlation* c, Workspace* workspace) {
  const size_t taps = as_size(s.x.kernel * s.y.kernel);
  take_taps(s.x, &c->x, workspace);
  take_taps(s.y, &c->y, workspace);
  const PhaseArrays arrays = {workspace->take<Phase>(as_size(c->x.phases * c->y.phases)),
                              workspace->take<size_t>(offsets_of(*c, taps))};
  c->packed = workspace->take<float>(packed_floats(kernels, *c, taps));
  return arrays;
}

size_t correlation_bytes(const Kernels& kernels, const Problem& s, bool is_gradient) {
  Correlation c = outline(s, is_gradient);
  Workspace counted;
  take_arrays(kernels, s, &c, &counted);
  return counted.used();
}

// Lists the phases, with the distance of every k from the pixel.
void list_phases(const Kernels& kernels, const PhaseArrays& arrays, Correlation* c) {
  const Block& b = c->block;
  const size_t packed_channels = round_up(c->out_channels, c->outputs_in_lanes ? kernels.tile_columns : 1);
  Phase* phase = arrays.phases;
  size_t* next = arrays.offsets;
  c->phases = phase;
  c->packed_group = 0;
  for (int64_t py = 0; py < c->y.phases; ++py) {
    for (int64_t px = 0; px < c->x.phases; ++px, ++phase) {
      const size_t rows = c->y.begin[py + 1] - c->y.begin[py], columns = c->x.begin[px + 1] - c->x.begin[px];
      phase->taps = rows * columns;
      phase->channels = channels_at_once(*c, phase->taps);
      phase->offsets = next;
      phase->weights = c->packed_group;
      c->packed_group += phase->taps * c->in_channels * packed_channels;
      if (phase->taps == 0) continue;
      for (size_t channel = 0; channel < phase->channels; ++channel) {
        for (const Tap* ty = c->y.taps + c->y.begin[py]; ty < c->y.taps + c->y.begin[py + 1]; ++ty) {
          for (const Tap* tx = c->x.taps + c->x.begin[px]; tx < c->x.taps + c->x.begin[px + 1]; ++tx)
            *next++ = channel * b.channel + (ty->slot * c->x.slots + tx->slot) * b.slot + ty->at * b.pitch + tx->at;
        }
      }
    }
  }
}

// c is outlined.
void correlate(const Kernels& kernels, const Problem& s, bool is_gradient, Correlation c, size_t threads,
               std::byte* work) {
  Workspace workspace(work);
  const PhaseArrays arrays = take_arrays(kernels, s, &c, &workspace);
  list_taps(s.x, is_gradient, &c.x);
  list_taps(s.y, is_gradient, &c.y);
  plan_blocks(kernels, threads, &c);
  list_phases(kernels, arrays, &c);
  parallel(s.groups * c.panels, threads, 8 * kByte * s.groups * c.w_group,
           [&](size_t piece) { kernels.pack_weights(c, piece / c.panels, piece % c.panels); });
  parallel(c.batch * c.groups * c.parts * c.block.row_blocks * column_pieces(c), threads, work_of(s),
           [&](size_t piece) { kernels.correlate(c, piece, reinterpret_cast<float*>(scratch())); });
}

// ---- weight gradient ----

WeightSum outline(const Problem& s) {
  WeightSum g{};
  g.batch = s.batch;
  g.groups = s.groups;
  g.in_channels = s.in_channels / s.groups;
  g.out_channels = s.out_channels / s.groups;
  g.taps = as_size(s.x.kernel * s.y.kernel);
  g.kernel_columns = as_size(s.x.kernel);
  g.x_taps = outline(s.x, false);
  g.y_taps = outline(s.y, false);
  return g;
}

// All arrays of an outlined sum, which may be longer than needed. Returns the offsets.
size_t* take_arrays(const Kernels& kernels, const Problem& s, WeightSum* g, Workspace* workspace) {
  take_taps(s.x, &g->x_taps, workspace);
  take_taps(s.y, &g->y_taps, workspace);
  size_t* offsets = workspace->take<size_t>(g->in_channels, g->taps);
  const size_t panels = divide_up(g->out_channels, kernels.tile_columns);
  const size_t sums = g->groups * panels * kernels.tile_columns * g->in_channels * g->taps;
  g->offsets = offsets;
  g->sums = workspace->take<float>(std::max(sums, std::min(kMaxSums, sums * kMaxParts)));
  return offsets;
}

// Whole panels of output channels, then channels, are divided until the sums of a piece fit the second cache.
void cut_sums(const Kernels& kernels, size_t used, WeightSum* g, size_t* channels) {
  g->used = used;
  g->panels = divide_up(g->out_channels, kernels.tile_columns);
  g->panels_at_once = g->panels;
  *channels = g->in_channels;
  while (*channels * used * kernels.tile_columns * g->panels_at_once > kSumFloats) {
    if (g->panels_at_once > 1) {
      g->panels_at_once = divide_up(g->panels_at_once, 2);
    } else if (*channels > 1) {
      *channels = divide_up(*channels, 2);
    } else {
      break;
    }
  }
}

bool plan_sums(const Kernels& kernels, size_t used, WeightSum* g) {
  size_t channels;
  cut_sums(kernels, used, g, &channels);
  const size_t others = kernels.tile_columns;  // one panel of dz
  g->block = choose_block(g->x_taps, g->y_taps, kPixels, g->is_flat ? 0 : channels, others, kSoftFloats,
                          kernels.tile_columns);
  Block& b = g->block;
  align_frame(&b);
  const size_t left = kScratchFloats - kSlack;
  if (others * b.rows * b.columns > left) return false;
  b.channels = channels;
  if (!g->is_flat) b.channels = std::min(channels, (left - others * b.rows * b.columns) / b.channel);
  if (b.channels == 0) return false;
  // Few pieces: the pixels are cut too, and every part has its own sums.
  const size_t pieces = g->groups * divide_up(g->in_channels, b.channels) * divide_up(g->panels, g->panels_at_once);
  const size_t sums = g->groups * g->panels * kernels.tile_columns * g->in_channels * used;
  const size_t blocks = g->batch * b.row_blocks * b.column_blocks;
  const size_t affordable = kMaxSums / std::max<size_t>(1, sums);
  g->parts = std::max<size_t>(1, std::min({divide_up(kMaxParts, pieces), affordable, blocks}));
  return true;
}

}  // namespace

bool fits_forward(const Kernels& kernels, const Problem& s) { return fits(kernels, s, false); }
size_t forward_bytes(const Kernels& kernels, const Problem& s) { return correlation_bytes(kernels, s, false); }

void forward(const Kernels& kernels, const Problem& problem, const Forward& f, size_t threads, std::byte* work) {
  const bool flat = is_flat(problem, f.x, f.y);
  const Problem s = flat ? flatten(problem) : problem;
  Correlation c = outline(s, false);
  c.is_flat = flat;
  c.in = f.x;
  c.out = f.y;
  c.w = f.w;
  c.bias = f.bias;
  c.activation = f.activation;
  correlate(kernels, s, false, c, threads, work);
}

bool fits_input_gradient(const Kernels& kernels, const Problem& s) { return fits(kernels, s, true); }
size_t input_gradient_bytes(const Kernels& kernels, const Problem& s) { return correlation_bytes(kernels, s, true); }

void input_gradient(const Kernels& kernels, const Problem& problem, const InputGradient& g, size_t threads,
                    std::byte* work) {
  const bool flat = is_flat(problem, g.dz, g.dx);
  const Problem s = flat ? flatten(problem) : problem;
  Correlation c = outline(s, true);
  c.is_flat = flat;
  c.in = g.dz;
  c.out = g.dx;
  c.w = g.w;
  c.bias = g.bias;
  c.activation = g.activation;
  c.accumulate = g.accumulate;
  correlate(kernels, s, true, c, threads, work);
}

bool fits_weight_gradient(const Kernels& kernels, const Problem& s) {
  WeightSum g = outline(s);
  find_span(s.x, false, &g.x_taps);
  find_span(s.y, false, &g.y_taps);
  return plan_sums(kernels, g.taps, &g);
}

size_t weight_gradient_bytes(const Kernels& kernels, const Problem& s) {
  WeightSum g = outline(s);
  Workspace counted;
  take_arrays(kernels, s, &g, &counted);
  return counted.used();
}

void weight_gradient(const Kernels& kernels, const Problem& problem, const WeightGradient& f, size_t threads,
                     std::byte* work) {
  const bool flat = is_flat(problem, f.x, f.dz);
  const Problem s = flat ? flatten(problem) : problem;
  Workspace workspace(work);
  WeightSum g = outline(s);
  size_t* offsets = take_arrays(kernels, s, &g, &workspace);
  g.x = f.x;
  g.dz = f.dz;
  g.dw = f.dw;
  g.accumulate = f.accumulate;
  g.is_flat = flat;
  list_taps(s.x, false, &g.x_taps);
  list_taps(s.y, false, &g.y_taps);
  plan_sums(kernels, g.x_taps.begin[1] * g.y_taps.begin[1], &g);
  const Block& b = g.block;
  for (size_t channel = 0; channel < b.channels; ++channel) {
    for (const Tap* ty = g.y_taps.taps; ty < g.y_taps.taps + g.y_taps.begin[1]; ++ty) {
      for (const Tap* tx = g.x_taps.taps; tx < g.x_taps.taps + g.x_taps.begin[1]; ++tx) {
        *offsets++ = flat ? channel * f.x.plane
                          : channel * b.channel + (ty->slot * g.x_taps.slots + tx->slot) * b.slot + ty->at * b.pitch +
                                tx->at;
      }
    }
  }
  const size_t others = g.parts * g.groups * divide_up(g.in_channels, b.channels);
  g.panels_at_once = even_pieces(g.panels, 1, g.panels_at_once, others, threads_worth(threads, work_of(s)));
  parallel(others * divide_up(g.panels, g.panels_at_once), threads, work_of(s),
           [&](size_t piece) { kernels.sum_weights(g, piece, reinterpret_cast<float*>(scratch())); });
  const size_t runs = divide_up(g.out_channels, kernels.lanes);
  parallel(g.groups * runs, threads, 4 * kByte * g.parts * s.out_channels * g.in_channels * g.taps, [&](size_t piece) { kernels.finish_weights(g, piece / runs, piece % runs); });
}

}  // namespace obn::convolution::direct

namespace obn::convolution {
namespace {

bool fits_forward(const Problem& s) { return direct::fits_forward(direct::targets.best(), s); }
size_t forward_bytes(const Problem& s) { return direct::forward_bytes(direct::targets.best(), s); }
void forward(const Problem& s, const Forward& f, size_t threads, std::byte* work) {
  direct::forward(direct::targets.best(), s, f, threads, work);
}

bool fits_input_gradient(const Problem& s) { return direct::fits_input_gradient(direct::targets.best(), s); }
size_t input_gradient_bytes(const Problem& s) { return direct::input_gradient_bytes(direct::targets.best(), s); }
void input_gradient(const Problem& s, const InputGradient& g, size_t threads, std::byte* work) {
  direct::input_gradient(direct::targets.best(), s, g, threads, work);
}

bool fits_weight_gradient(const Problem& s) { return direct::fits_weight_gradient(direct::targets.best(), s); }
size_t weight_gradient_bytes(const Problem& s) { return direct::weight_gradient_bytes(direct::targets.best(), s); }
void weight_gradient(const Problem& s, const WeightGradient& g, size_t threads, std::byte* work) {
  direct::weight_gradient(direct::targets.best(), s, g, threads, work);
}

}  // namespace

constinit const ForwardAlgorithm direct_forward = {"direct", fits_forward, forward_bytes, forward};
constinit const InputGradientAlgorithm direct_input_gradient = {"direct", fits_input_gradient, input_gradient_bytes,
                                                                input_gradient};
constinit const WeightGradientAlgorithm direct_weight_gradient = {"direct", fits_weight_gradient,
                                                                  weight_gradient_bytes, weight_gradient};

}  // namespace obn::convolution
