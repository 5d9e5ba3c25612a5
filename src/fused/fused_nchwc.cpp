// A convolution by Winograd's algorithm, a batch norm and a max pooling, the desk: cuts a call into blocks of samples
// and does the arithmetic on channels. Letters as in fused_nchwc.h.
#include "fused/fused_nchwc.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/integer.h"
#include "base/interrupt.h"
#include "base/pool.h"
#include "base/types.h"
#include "base/workspace.h"
#include "convolution/winograd/winograd_cut.h"
#include "fused/fused.h"
#include "fused/fused_parameters.h"

namespace obn::fused {
namespace {

namespace winograd = convolution::winograd;
using convolution::Planes;
using winograd::as_size;
using winograd::kPoints;
using winograd::Matrices;

constexpr size_t kBlockBytes = size_t{600} << 10;   // of a block of samples, beside the weights in the same cache
constexpr size_t kSampleBytes = size_t{768} << 10;  // of one sample: larger ones are better cut into parts of planes
constexpr size_t kSumBytes = size_t{640} << 10;     // of the sums of dw: larger ones should not be saved once per part
constexpr size_t kSumsPerPart = 6;                  // a part has V and Y of this many times the room of its sums
constexpr size_t kMostParts = 16;                   // about
constexpr size_t kLeastParts = 4;                   // where there are as many blocks

size_t floats_of(const Matrices& m) { return kPoints * m.point; }

// Transformed weights of a pass from `inputs` to `outputs` channels.
winograd::Panels panels(const winograd::Kernels& kernels, size_t inputs, size_t outputs, float* data) {
  const size_t step = inputs * kernels.panel;
  return {data, divide_up(outputs, kernels.panel) * step + winograd::kSpread, step};
}

void transform_weights(const winograd::Kernels& kernels, const float* w, size_t k_step, size_t j_step, bool turned,
                       size_t inputs, size_t outputs, size_t threads, const winograd::Panels& u) {
  parallel(divide_up(outputs, kernels.lanes), threads, winograd::kWeight * inputs * outputs, [&](size_t piece) {
    const size_t j = piece * kernels.lanes;
    kernels.weights(w + j * j_step, k_step, j_step, turned, inputs, std::min(outputs - j, kernels.lanes),
                    u.data + j / kernels.panel * u.step + j % kernels.panel, u.point);
  });
}

}  // namespace

struct NchwcNorm::Shape {
  const winograd::Kernels* winograd;
  const nchwc::Kernels* kernels;
  size_t batch, inputs, outputs;   // N, C, O
  size_t rows, columns;            // P = H, Q = W
  size_t lanes, groups;            // of output channels
  size_t in_row, out_row;          // channels in whole vectors
  size_t windows;                  // of a plane
  size_t z_row, z_group;           // floats; planes have an even number of rows and columns
  size_t u_row, u_group;           // and a border of one pixel
  size_t samples, blocks;          // of a block
  winograd::Block tiles;           // of a whole block
  size_t parts, part_blocks;       // of dw, and the blocks of one
  size_t sum;                      // floats of one of them
  bool is_small;

  size_t z_sample() const { return groups * z_group; }
  size_t u_sample() const { return groups * u_group; }
  size_t u_rows() const { return u_group / u_row; }
  size_t winners() const { return groups * windows * lanes; }  // of a sample
  size_t channels(size_t group) const { return std::min(lanes, outputs - group * lanes); }
  size_t samples_of(size_t block) const { return std::min(samples, batch - block * samples); }
  double work() const {  // of the products, in nanoseconds
    const size_t all = batch * tiles.tile_rows * tiles.tile_columns;
    return (winograd::kPoints * kMultiplyAdd * inputs * outputs + winograd::kTile * (inputs + outputs)) * all;
  }
  double pixels() const { return static_cast<double>(rows * columns); }
  // Tiles of so many samples.
  winograd::Block tiles_of(size_t n) const {
    winograd::Block block = tiles;
    block.rows = n * tiles.tile_rows;
    return block;
  }
  Matrices inputs_at(float* data) const {
    return winograd::matrices(data, samples * tiles.tile_rows * tiles.tile_columns, in_row);
  }
  Matrices outputs_at(float* data) const {
    return winograd::matrices(data, samples * tiles.tile_rows * tiles.tile_columns, out_row);
  }
};

struct NchwcNorm::Saved {
  float* z;        // (N, groups, rows, columns, lanes)
  float* winners;  // (N, groups, windows, lanes)
  float *mean, *scale;                  // (groups·lanes): rounded
  double *exact_mean, *r, *exact_scale;  // (O)
};

struct NchwcNorm::ForwardWork {
  float *w, *bias, *row;              // (O, C, 3, 3), (O), (O)
  winograd::Panels u;
  float *guess, *sum, *squares;       // (N, groups·lanes)
  double *mean, *variance, *gamma, *beta;  // (O)
  float* shift;                       // (groups·lanes)
  float* x;                           // (N, C, H, W) where the caller's does not serve, or NULL

  ForwardWork(const NchwcNorm& layer, const Shape& s, bool copies_x, Workspace* space) {
    w = space->take<float>(s.outputs, s.inputs * 9);
    for (float** array : {&bias, &row, &shift}) *array = space->take<float>(s.out_row);
    u = panels(*s.winograd, s.inputs, s.outputs, nullptr);
    u.data = space->take<float>(kPoints, u.point);
    for (float** array : {&guess, &sum, &squares}) *array = space->take<float>(s.batch, s.out_row);
    for (double** array : {&mean, &variance, &gamma, &beta}) *array = space->take<double>(s.outputs);
    x = copies_x ? space->take<float>(s.batch, layer.first_->input().count) : nullptr;
  }
};

struct NchwcNorm::BackwardWork {
  float *w, *bias, *row;
  winograd::Panels u;                  // of dx
  float* dz;                           // (N, groups, windows, lanes)
  float *sum, *products;               // (N, groups·lanes)
  double *dbeta, *dgamma, *db;         // (O)
  float *start, *slope;                // (groups·lanes)
  float *parts, *dw;                   // sums; (O, C, 3, 3)
  float *x, *dy, *dx;                  // where the caller's do not serve, or NULL

  BackwardWork(const NchwcNorm& layer, const Shape& s, bool copies_x, bool copies_dy, bool copies_dx,
               Workspace* space) {
    w = space->take<float>(s.outputs, s.inputs * 9);
    dw = space->take<float>(s.outputs, s.inputs * 9);
    for (float** array : {&bias, &row, &start, &slope}) *array = space->take<float>(s.out_row);
    u = panels(*s.winograd, s.outputs, s.inputs, nullptr);
    u.data = space->take<float>(kPoints, u.point);
    dz = space->take<float>(s.batch, s.winners());
    for (float** array : {&sum, &products}) *array = space->take<float>(s.batch, s.out_row);
    for (double** array : {&dbeta, &dgamma, &db}) *array = space->take<double>(s.outputs);
    parts = space->take<float>(s.parts, s.sum);
    const size_t image = layer.first_->input().count;
    x = copies_x ? space->take<float>(s.batch, image) : nullptr;
    dx = copies_dx ? space->take<float>(s.batch, image) : nullptr;
    dy = copies_dy ? space->take<float>(s.batch, layer.y_->count) : nullptr;
  }
};

// ---- where it is used ----

bool NchwcNorm::join(convolution::Convolution* first, normalization::Normalization* second,
                     const pooling::Plan& pooling, const View& y) {
  const convolution::Problem& s = first->problem();
  const normalization::Plan& plan = second->plan;
  if (first->is_transposed() || first->has_activation() || !is_float(first->input().type) ||
      first->output().type != BNNSDataTypeFloat32 || !first->has_float_weights())
    return false;
  if (plan.kind != normalization::Kind::batch || !(plan.activation.is_identity() || plan.is_relu)) return false;
  const convolution::Choice choice = convolution::choose(s, true);
  if (choice.forward != &convolution::winograd_forward ||
      choice.input_gradient != &convolution::winograd_input_gradient ||
      choice.weight_gradient != &convolution::winograd_weight_gradient)
    return false;
  const auto is_same = [](const convolution::Axis& axis) { return axis.before == 1 && axis.in == axis.out; };
  const auto is_pair = [](const pooling::Axis& axis) {
    return axis.kernel == 2 && axis.before == 0 && axis.dilation == 1 && (axis.stride == 2 || axis.windows == 1) &&
           2 * axis.windows <= axis.image;
  };
  if (!is_same(s.x) || !is_same(s.y) || pooling.function != BNNSPoolingFunctionMax || pooling.bias.data ||
      pooling.has_activation || !is_pair(pooling.x) || !is_pair(pooling.y) || !has_plain_planes(y))
    return false;
  first_ = first;
  second_ = second;
  y_ = &y;
  rows_ = as_size(pooling.y.windows);
  columns_ = as_size(pooling.x.windows);
  return true;
}

NchwcNorm::Shape NchwcNorm::shape(size_t batch) const {
  const convolution::Problem& p = first_->problem();
  Shape s;
  s.winograd = &winograd::targets.best();
  s.kernels = &nchwc::targets.best();
  s.batch = batch;
  s.inputs = p.in_channels;
  s.outputs = p.out_channels;
  s.rows = as_size(p.y.out);
  s.columns = as_size(p.x.out);
  s.lanes = s.kernels->lanes;
  s.in_row = round_up(s.inputs, s.lanes);
  s.out_row = round_up(s.outputs, s.lanes);
  s.groups = s.out_row / s.lanes;
  s.windows = rows_ * columns_;
  s.z_row = round_up(s.columns, 2) * s.lanes;
  s.z_group = round_up(s.rows, 2) * s.z_row;
  s.u_row = (round_up(s.columns, 2) + 2) * s.lanes;
  s.u_group = (round_up(s.rows, 2) + 2) * s.u_row;
  const size_t tiles = winograd::count_tiles(1, p.y.out, p.x.out);
  const size_t of_tiles = tiles * kPoints * (s.in_row + s.out_row) * sizeof(float);
  const size_t per_sample = of_tiles + s.u_sample() * sizeof(float);
  s.blocks = divide_up(batch, std::max<size_t>(1, kBlockBytes / per_sample));
  s.samples = divide_up(batch, s.blocks);
  s.blocks = divide_up(batch, s.samples);
  s.tiles = winograd::cut_tiles(s.samples, p.y.out, p.x.out, s.samples * tiles, tiles).all;
  s.sum = floats_of(winograd::matrices(nullptr, s.inputs, s.out_row));
  const size_t sum_bytes = s.sum * sizeof(float), wanted = batch * of_tiles / (kSumsPerPart * sum_bytes);
  const size_t most = std::clamp(wanted, kLeastParts, kMostParts);
  s.part_blocks = std::max<size_t>(1, (s.blocks + most / 2) / most);
  s.parts = divide_up(s.blocks, s.part_blocks);
  s.is_small = per_sample <= kSampleBytes && sum_bytes <= kSumBytes && s.parts * sum_bytes <= batch * of_tiles;
  return s;
}

bool NchwcNorm::takes(size_t batch) const {
  return first_ && first_->uses_winograd() && batch <= std::numeric_limits<uint32_t>::max() && shape(batch).is_small;
}

// ---- what is saved ----

NchwcNorm::Saved NchwcNorm::lay_out_saved(const Shape& s, std::byte* block, size_t* bytes) const {
  Workspace space(block);
  Saved saved;
  saved.z = space.take<float>(s.batch, s.z_sample());
  saved.winners = space.take<float>(s.batch, s.winners());
  for (float** array : {&saved.mean, &saved.scale}) *array = space.take<float>(s.out_row);
  for (double** array : {&saved.exact_mean, &saved.r, &saved.exact_scale})
    *array = space.take<double>(s.outputs);
  *bytes = space.used();
  return saved;
}

size_t NchwcNorm::saved_bytes(size_t batch) const {
  size_t bytes;
  lay_out_saved(shape(batch), nullptr, &bytes);
  return check_saved(bytes, batch);
}

int NchwcNorm::reserve(size_t batch) {
  const size_t needed = saved_bytes(batch);
  return needed == SIZE_MAX ? -1 : block_.reserve(needed, &second_->state.batch);
}

size_t NchwcNorm::work_bytes(size_t batch) const {
  if (first_->work_bytes(batch) == SIZE_MAX) return SIZE_MAX;  // with its sentence
  const Shape s = shape(batch);
  Workspace forward, backward;
  ForwardWork(*this, s, true, &forward);
  BackwardWork(*this, s, true, true, true, &backward);
  return std::max(forward.used(), backward.used());
}

// ---- forward ----

// z of a block of samples, and its moments.
void NchwcNorm::make_z(const Shape& s, const ForwardWork& work, const Planes& x, const Saved& saved,
                       size_t block) const {
  const size_t first = block * s.samples, n = s.samples_of(block);
  const winograd::Block tiles = s.tiles_of(n);
  float* room = reinterpret_cast<float*>(scratch());
  const Matrices v = s.inputs_at(room + s.winograd->room_floats(tiles.tile_columns));
  const Matrices m = s.outputs_at(v.data + floats_of(v));
  winograd::Image image = {x, s.inputs, static_cast<int64_t>(s.rows), static_cast<int64_t>(s.columns)};
  image.planes.data += first * x.sample;
  const winograd::Lanes z = {saved.z + first * s.z_sample(), s.z_row, s.z_group, s.z_sample()};
  s.winograd->data(image, 1, 1, tiles, {0, s.inputs}, v, room);
  s.winograd->multiply(tiles, v, s.inputs, work.u, s.outputs, false, m);
  s.winograd->outputs_to_lanes(m, tiles, {0, s.outputs}, z, work.bias);
  for (size_t i = 0; i < n * s.groups; ++i) {
    const size_t at = (first * s.groups + i) * s.lanes;
    s.kernels->moments({z.data + i * s.z_group, s.z_row, s.rows, s.columns, work.guess + at, work.sum + at,
                        work.squares + at});
  }
}

void NchwcNorm::find_statistics(const Shape& s, const ForwardWork& work, const Saved& saved) const {
  const normalization::Plan& plan = second_->plan;
  const double samples = static_cast<double>(s.batch), pixels = s.pixels();
  const auto mean_of = [&](size_t at) {
    return static_cast<double>(work.guess[at]) + static_cast<double>(work.sum[at]) / pixels;
  };
  std::fill_n(work.mean, s.outputs, 0.0);
  std::fill_n(work.variance, s.outputs, 0.0);
  for (size_t n = 0; n < s.batch; ++n)
    for (size_t o = 0; o < s.outputs; ++o) work.mean[o] += mean_of(n * s.out_row + o);
  for (size_t o = 0; o < s.outputs; ++o) work.mean[o] /= samples;
  for (size_t n = 0; n < s.batch; ++n)
    for (size_t o = 0; o < s.outputs; ++o) {
      const size_t at = n * s.out_row + o;
      const double sum = static_cast<double>(work.sum[at]), apart = mean_of(at) - work.mean[o];
      work.variance[o] += static_cast<double>(work.squares[at]) - sum * sum / pixels + pixels * apart * apart;
    }
  for (float* array : {saved.mean, saved.scale, work.shift}) std::fill_n(array, s.out_row, 0.0f);
  for (size_t o = 0; o < s.outputs; ++o) {
    const double variance = work.variance[o] / (samples * pixels);
    work.variance[o] = variance < 0.0 ? 0.0 : variance;  // by rounding
    saved.exact_mean[o] = work.mean[o];
    saved.r[o] = 1.0 / std::sqrt(work.variance[o] + static_cast<double>(plan.epsilon));
    saved.exact_scale[o] = work.gamma[o] * saved.r[o];
    saved.mean[o] = static_cast<float>(work.mean[o]);
    saved.scale[o] = static_cast<float>(saved.exact_scale[o]);
    const double rounded = static_cast<double>(saved.mean[o]) - work.mean[o];
    work.shift[o] = static_cast<float>(work.beta[o] + saved.exact_scale[o] * rounded);
  }
}

int NchwcNorm::apply(size_t batch, const convolution::Images& x, float* y, size_t y_step) {
  const normalization::Plan& plan = second_->plan;
  const Shape s = shape(batch);
  Workspace counted;
  ForwardWork(*this, s, !x.is_direct(), &counted);
  std::byte* block;
  if (find_workspace(counted.used(), &block) != 0) return -1;
  Workspace space(block);
  const ForwardWork work(*this, s, !x.is_direct(), &space);
  if (reserve(batch) != 0) return -1;
  size_t unused;
  const Saved saved = lay_out_saved(s, block_.data(), &unused);
  const size_t threads = first_->make_run(batch).threads;
  first_->read_parameters(threads, work.w, work.bias);
  read_parameter(plan.gamma, s.outputs, 1.0, work.row, work.gamma);
  read_parameter(plan.beta, s.outputs, 0.0, work.row, work.beta);
  if (work.x) convolution::load_images(x, 0, batch, threads, work.x);
  const Planes from = work.x ? convolution::dense_planes(first_->input(), work.x) : x.planes(0);
  transform_weights(*s.winograd, work.w, 9, 9 * s.inputs, false, s.inputs, s.outputs, threads, work.u);
  parallel(s.blocks, threads, s.work(), [&](size_t block) { make_z(s, work, from, saved, block); });
  find_statistics(s, work, saved);
  const Planes to = convolution::Images{y_, reinterpret_cast<std::byte*>(y), y_step}.planes(0);
  const float low = plan.is_relu ? 0.0f : -std::numeric_limits<float>::infinity();
  parallel(s.blocks, threads, s.work() / 4, [&](size_t block) {
    const size_t first = block * s.samples * s.groups;
    for (size_t i = first; i < first + s.samples_of(block) * s.groups; ++i) {
      const size_t group = i % s.groups, c = group * s.lanes;
      s.kernels->maxima({saved.z + i * s.z_group, s.z_row, rows_, columns_, saved.mean + c, saved.scale + c,
                         work.shift + c, low, plan.is_relu, to.data + i / s.groups * to.sample + c * to.plane, to.plane,
                         s.channels(group), saved.winners + i * s.windows * s.lanes});
    }
  });
  normalization::update_moving(plan, batch, work.mean, work.variance);
  second_->state.batch = batch;
  return 0;
}

// ---- backward ----

// dβ and dγ from the sums over windows, and what makes u of z.
void NchwcNorm::find_slopes(const Shape& s, const BackwardWork& work, const Saved& saved) const {
  const double pixels = static_cast<double>(s.batch) * s.pixels();
  for (double* array : {work.dbeta, work.dgamma, work.db}) std::fill_n(array, s.outputs, 0.0);
  for (size_t n = 0; n < s.batch; ++n)
    for (size_t o = 0; o < s.outputs; ++o) {
      work.dbeta[o] += static_cast<double>(work.sum[n * s.out_row + o]);
      work.dgamma[o] += static_cast<double>(work.products[n * s.out_row + o]);
    }
  for (float* array : {work.start, work.slope}) std::fill_n(array, s.out_row, 0.0f);
  for (size_t o = 0; o < s.outputs; ++o) {
    const double rounded = static_cast<double>(saved.mean[o]) - saved.exact_mean[o], r = saved.r[o];
    work.dgamma[o] = r * (work.dgamma[o] + rounded * work.dbeta[o]);
    const double slope = saved.exact_scale[o] * r * work.dgamma[o] / pixels;
    work.slope[o] = static_cast<float>(slope);
    work.start[o] = static_cast<float>(-saved.exact_scale[o] * work.dbeta[o] / pixels - slope * rounded);
  }
}

void NchwcNorm::make_u(const Shape& s, const BackwardWork& work, const Saved& saved, size_t sample, float* u) const {
  for (size_t group = 0; group < s.groups; ++group) {
    const size_t i = sample * s.groups + group, c = group * s.lanes, windows = i * s.windows * s.lanes;
    s.kernels->gradient({saved.z + i * s.z_group, s.z_row, s.rows, s.columns, rows_, columns_, saved.winners + windows,
                         work.dz + windows, saved.mean + c, saved.scale + c, work.start + c, work.slope + c,
                         u + group * s.u_group, s.u_rows(), s.u_row / s.lanes});
  }
}

// Gradients of a block of samples. dx without data and a sum that is NULL are not wanted.
void NchwcNorm::run_block(const Shape& s, const BackwardWork& work, const Saved& saved, const Planes& x,
                          const convolution::InputGradient& g, size_t block, bool is_first, float* sum) const {
  const size_t first = block * s.samples, n = s.samples_of(block);
  const winograd::Block tiles = s.tiles_of(n);
  const winograd::Kernels& kernels = *s.winograd;
  float* room = reinterpret_cast<float*>(scratch());
  const Matrices in = s.inputs_at(room + kernels.room_floats(tiles.tile_columns));
  const Matrices out = s.outputs_at(in.data + floats_of(in));
  const winograd::Lanes u = {out.data + floats_of(out), s.u_row, s.u_group, s.u_sample()};
  for (size_t i = 0; i < n; ++i) make_u(s, work, saved, first + i, u.data + i * u.sample);
  winograd::Image image = {x, s.inputs, static_cast<int64_t>(s.rows), static_cast<int64_t>(s.columns)};
  if (g.dx.data) {
    image.planes = g.dx;
    image.planes.data += first * g.dx.sample;
    kernels.data_of_lanes(u, tiles, {0, s.outputs}, out);
    kernels.multiply(tiles, out, s.outputs, work.u, s.inputs, false, in);
    kernels.outputs(in, tiles, {0, s.inputs}, image, nullptr, g.accumulate, room);
  }
  if (sum) {
    image.planes = x;
    image.planes.data += first * x.sample;
    const winograd::Lanes inside = {u.data + s.u_row + s.lanes, u.row, u.group, u.sample};
    kernels.data(image, 1, 1, tiles, {0, s.inputs}, in, room);
    kernels.gradient_of_lanes(inside, tiles, {0, s.outputs}, out);
    kernels.correlate(tiles, in, out, {0, s.inputs}, {0, s.outputs}, !is_first,
                      winograd::matrices(sum, s.inputs, s.out_row));
  }
}

int NchwcNorm::apply_backward(const convolution::Gradients& first, const normalization::Gradients& g) {
  const Shape s = shape(second_->state.batch);
  const convolution::Images dy = {&g.dy_view, static_cast<std::byte*>(g.dy_view.data), g.dy_stride};
  const bool has_dx = first.dx.data, has_dw = first.dw.memory.data;
  const bool copies_x = has_dw && !first.x.is_direct(), copies_dx = has_dx && !first.dx.is_direct();
  const bool copies_dy = !has_plain_planes(g.dy_view);
  Workspace counted;
  BackwardWork(*this, s, copies_x, copies_dy, copies_dx, &counted);
  std::byte* block;
  if (find_workspace(counted.used(), &block) != 0) return -1;
  Workspace space(block);
  const BackwardWork work(*this, s, copies_x, copies_dy, copies_dx, &space);
  size_t unused;
  const Saved saved = lay_out_saved(s, block_.data(), &unused);
  const size_t threads = first_->make_run(s.batch).threads;
  if (copies_dy) convolution::load_images(dy, 0, s.batch, threads, work.dy);
  const Planes given = copies_dy ? convolution::dense_planes(*y_, work.dy) : dy.planes(0);
  parallel(s.blocks, threads, s.work() / 4, [&](size_t block) {
    const size_t from = block * s.samples * s.groups;
    for (size_t i = from; i < from + s.samples_of(block) * s.groups; ++i) {
      const size_t group = i % s.groups, c = group * s.lanes, windows = i * s.windows * s.lanes;
      s.kernels->winner_sums({given.data + i / s.groups * given.sample + c * given.plane, given.plane,
                              s.channels(group), s.windows, saved.winners + windows, saved.mean + c, work.dz + windows,
                              work.sum + i * s.lanes, work.products + i * s.lanes});
    }
  });
  find_slopes(s, work, saved);
  store_gradient(g.dbeta, work.dbeta, s.outputs, work.row);
  store_gradient(g.dgamma, work.dgamma, s.outputs, work.row);
  Planes x = {};
  if (has_dw) {
    if (copies_x) convolution::load_images(first.x, 0, s.batch, threads, work.x);
    x = copies_x ? convolution::dense_planes(first_->input(), work.x) : first.x.planes(0);
  }
  convolution::InputGradient dx = {};
  if (has_dx) {
    dx.dx = copies_dx ? convolution::dense_planes(first_->input(), work.dx) : first.dx.planes(0);
    dx.accumulate = !copies_dx && first.dx_view.accumulate;
    first_->read_parameters(threads, work.w, work.bias);
    transform_weights(*s.winograd, work.w, 9 * s.inputs, 9, true, s.outputs, s.inputs, threads, work.u);
  }
  if (has_dx || has_dw)
    parallel(s.parts, threads, 2 * s.work(), [&](size_t part) {
      const size_t from = part * s.part_blocks, end = std::min(s.blocks, from + s.part_blocks);
      for (size_t block = from; block < end && !is_interrupted(); ++block)
        run_block(s, work, saved, x, dx, block, block == from, has_dw ? work.parts + part * s.sum : nullptr);
    });
  if (copies_dx) convolution::store_images(work.dx, first.dx, 0, s.batch, first.dx_view.accumulate, threads);
  if (has_dw)
    parallel(s.groups, threads, winograd::kWeight * s.parts * s.inputs * s.outputs, [&](size_t group) {
      Matrices sum = winograd::matrices(work.parts, s.inputs, s.out_row);
      sum.data += group * s.lanes;
      const size_t o = group * s.lanes;
      s.winograd->weight_gradient(sum, s.parts, s.sum, {0, s.inputs}, {o, o + s.channels(group)}, s.inputs, false,
                                  work.dw);
    });
  first_->put_gradients(first, work.dw, work.db, threads);
  return 0;
}

}  // namespace obn::fused
