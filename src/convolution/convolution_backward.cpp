// Convolution, the desk of backward calls: all gradients at once, or channel by channel.
#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/status.h"
#include "convolution/convolution_filter.h"

namespace obn::convolution {

struct Convolution::BackwardWork {
  size_t chunk;
  float* w;         // each NULL where it is not needed
  float* x;
  float* dz;
  float* dx;
  float* dw;
  double* partial;  // (kSumGroups, output channels)
  double* sums;     // (output channels)
  std::byte* algorithm;
};

int Convolution::check_weight_gradient(const BNNSNDArrayDescriptor& descriptor, Gradients* g) const {
  const char* word = "weights_gradient";
  size_t unused;
  if (read_weights(descriptor, Access::write, word, order_, &g->dw) != 0 ||
      read_batch(g->dw.memory, g->dw.memory.data, 1, 0, Access::write, word, &unused) != 0)
    return -1;
  const WeightArray &w = weights_, &dw = g->dw;
  if (dw.memory.layout != w.memory.layout || dw.kw != w.kw || dw.kh != w.kh || dw.in != w.in || dw.out != w.out)
    return fail("%s: expected (%zu, %zu, %zu, %zu) output channels, input channels, rows, columns in layout %s; "
                "got (%zu, %zu, %zu, %zu) in layout %s",
                word, w.out, w.in, w.kh, w.kw, name_of(w.memory.layout), dw.out, dw.in, dw.kh, dw.kw,
                name_of(dw.memory.layout));
  if (!is_float(dw.memory.type))
    return fail("%s: expected float32, float16 or bfloat16; got %s", word, name_of(dw.memory.type));
  return 0;
}

int Convolution::check_bias_gradient(const BNNSNDArrayDescriptor& descriptor, Gradients* g) const {
  const char* word = "bias_gradient";
  size_t unused;
  if (read_view(descriptor, Access::write, word, &g->db) != 0 ||
      check_per_channel(g->db, output_.extent[2], word, &g->db_stride) != 0 ||
      read_batch(g->db, g->db.data, 1, 0, Access::write, word, &unused) != 0)
    return -1;
  if (!is_float(g->db.type))
    return fail("%s: expected float32, float16 or bfloat16; got %s", word, name_of(g->db.type));
  return 0;
}

// What is written lies apart from everything else.
int Convolution::check_places(const Gradients& g) const {
  const Place places[] = {{"input_gradient", &g.dx_view, g.dx.data, g.dx.step, g.batch},
                          {"weights_gradient", &g.dw.memory, g.dw.memory.data, 0, 1},
                          {"bias_gradient", &g.db, g.db.data, 0, 1},
                          {"grad_output", &g.dy_view, g.dy.data, g.dy.step, g.batch},
                          {"input", &input_, g.x.data, g.x.step, g.batch},
                          {"output", &output_, g.y.data, g.y.step, g.batch}};
  constexpr size_t kWritten = 3;
  for (size_t a = 0; a < kWritten; ++a)
    for (size_t b = a + 1; b < std::size(places); ++b)
      if (check_apart(places[a], places[b]) != 0) return -1;
  for (size_t a = 0; a < kWritten; ++a)
    if (check_own_apart(places[a]) != 0) return -1;
  return 0;
}

int Convolution::check_output_gradient(const Backward& a, Gradients* g) const {
  if (read_gradient(*a.dy, output_, Access::read, a.batch, a.dy_stride, "grad_output", &g->dy_view, &g->dy.step) != 0)
    return -1;
  g->dy.view = &g->dy_view;
  g->dy.data = static_cast<std::byte*>(g->dy_view.data);
  if (activation_.is_identity()) return 0;
  if (activation_.check_backward() != 0) return -1;
  if (!a.y && a.batch > 0)
    return fail("output: expected the result of apply, which the activation's gradient needs; got NULL");
  if (read_batch(output_, a.y, a.batch, a.y_stride, Access::read, "output", &g->y.step) != 0) return -1;
  g->y.view = &output_;
  g->y.data = static_cast<std::byte*>(const_cast<void*>(a.y));
  return 0;
}

int Convolution::check_gradients(const Backward& a, Gradients* g) const {
  if (!is_float(input_.type) || !is_float(output_.type) || !is_float(weights_.memory.type))
    return fail("input: expected floating-point input, weights and output for a gradient; got %s, %s and %s",
                name_of(input_.type), name_of(weights_.memory.type), name_of(output_.type));
  if (check_size(a.batch) != 0) return -1;
  g->batch = a.batch;
  g->x = {&input_, nullptr, 0};
  if (a.dw) {
    if (!a.x && a.batch > 0)
      return fail("input: expected the input of apply, which weights_gradient needs; got NULL");
    if (check_input(a.batch, a.x, a.x_stride, &g->x) != 0 || check_weight_gradient(*a.dw, g) != 0) return -1;
  }
  g->dx = {&g->dx_view, nullptr, 0};
  if (a.dx) {
    if (read_gradient(*a.dx, input_, Access::write, a.batch, a.dx_stride, "input_gradient", &g->dx_view,
                      &g->dx.step) != 0)
      return -1;
    g->dx.data = static_cast<std::byte*>(g->dx_view.data);
  }
  if (a.db && check_bias_gradient(*a.db, g) != 0) return -1;
  return check_places(*g);
}

Convolution::BackwardWork Convolution::lay_out_backward(Workspace* workspace, const Run& run,
                                                        const Gradients& g) const {
  BackwardWork work = {};
  const bool wants_dx = g.dx.data, wants_dw = g.dw.memory.data, wants_db = g.db.data;
  const size_t channels = output_.extent[2];
  const bool adds_copy = transposed_ && wants_dx && g.dx_view.accumulate;
  const size_t dz_floats = g.dy.is_direct() && activation_.is_identity() ? 0 : output_.count;
  const bool input_direct = Images{&input_, nullptr, 0}.is_direct();
  const bool copies_x = wants_dw && !input_direct;
  const bool copies_dx = wants_dx && (!g.dx.is_direct() || adds_copy);
  // Sums over the batch follow the chunks: these do not depend on which gradients are wanted, so that a gradient has
  // the same bits alone and with the others.
  const size_t input_floats = !input_direct || transposed_ || copies_dx ? input_.count : 0;
  work.chunk = chunk_of(g.batch, dz_floats + input_floats);
  if (dz_floats) work.dz = workspace->take<float>(work.chunk, dz_floats);
  if (copies_x || copies_dx) {  // x has served before dx is made
    float* image = workspace->take<float>(work.chunk, input_.count);
    work.x = copies_x ? image : nullptr;
    work.dx = copies_dx ? image : nullptr;
  }
  if (wants_dx && !w_) work.w = workspace->take<float>(weights_.count());
  if (wants_dw && !is_canonical(g.dw, order_)) work.dw = workspace->take<float>(weights_.count());
  if (wants_db) {
    work.partial = workspace->take<double>(kSumGroups, channels);
    work.sums = workspace->take<double>(channels);
  }
  size_t bytes = 0;
  for (size_t samples : {work.chunk, g.batch % work.chunk}) {
    if (samples == 0) continue;
    if (wants_dx) bytes = std::max(bytes, bytes_to_input(run.choice, samples));
    if (wants_dw) bytes = std::max(bytes, bytes_to_weights(run.choice, samples));
  }
  work.algorithm = workspace->take(bytes);
  return work;
}

size_t Convolution::backward_bytes(const Run& run, const Gradients& g) const {
  Workspace counted;
  lay_out_backward(&counted, run, g);
  return counted.used();
}

int Convolution::apply_backward(const Backward& a) {
  if (!a.dy) return fail("grad_output: expected a descriptor; got NULL");
  if (!a.dx && !a.dw && !a.db) return 0;
  Gradients g;
  if (check_output_gradient(a, &g) != 0 || check_gradients(a, &g) != 0) return -1;
  if (a.batch == 0) {
    g.clear_sums();
    return 0;
  }
  const Run run = make_run(a.batch);
  std::byte* block;
  if (find_workspace(backward_bytes(run, g), &block) != 0) return -1;
  if (!activation_.is_identity() && activation_.depends_on_values() &&
      !accepts_output(activation_, g.y, a.batch, run.threads))
    return fail("output: expected values from which the activation's gradient is known; got ambiguous ones");
  run_backward(run, g, block);
  return 0;
}

void Convolution::run_backward(Run run, const Gradients& g, std::byte* block) const {
  Workspace workspace(block);
  const BackwardWork work = lay_out_backward(&workspace, run, g);
  if (work.w) expand_weights(weights_, order_, false, run.threads, work.w);
  backward_floats(&run, work, g);
}

void Convolution::backward_floats(Run* run, const BackwardWork& work, const Gradients& g) const {
  const size_t channels = output_.extent[2];
  if (work.sums) std::fill_n(work.sums, channels, 0.0);
  run->work = work.algorithm;
  const OutputGradient output = {g.dy, g.y, activation_.is_identity() ? nullptr : &activation_, needs_rows_, work.dz,
                                 work.partial, work.sums};
  for (size_t first = 0; first < g.batch; first += work.chunk) {
    const size_t samples = std::min(work.chunk, g.batch - first);
    run->problem.batch = samples;
    if (work.dz || work.sums) make_output_gradient(output, first, samples, run->threads);
    const Planes dz = work.dz ? dense_planes(output_, work.dz) : g.dy.planes(first);
    if (g.dw.memory.data) {
      if (work.x) load_images(g.x, first, samples, run->threads, work.x);
      const Planes x = work.x ? dense_planes(input_, work.x) : g.x.planes(first);
      float* dw = work.dw ? work.dw : static_cast<float*>(g.dw.memory.data);
      to_weights(*run, x, dz, dw, first > 0 || (!work.dw && g.dw.memory.accumulate));
    }
    if (g.dx.data) {
      const Planes dx = work.dx ? dense_planes(input_, work.dx) : g.dx.planes(first);
      to_input(*run, dz, w_ ? w_ : work.w, dx, !work.dx && g.dx_view.accumulate);
      if (work.dx) store_images(work.dx, g.dx, first, samples, g.dx_view.accumulate, run->threads);
    }
  }
  if (work.dw) put_weights(g.dw, order_, work.dw, run->threads);
  if (work.sums) put_bias_gradient(g, work.sums);
}

// ---- backward by channels ----

struct Convolution::ChannelsWork {
  double* sums;  // (output channels), or NULL
  std::byte* algorithm;
};

bool Convolution::takes_channels(const Run& run, const Gradients& g) const {
  if (transposed_ || run.choice.input_gradient != &depthwise_input_gradient ||
      run.choice.weight_gradient != &depthwise_weight_gradient || !depthwise::Channels::fits(problem_) ||
      !activation_.is_identity())
    return false;
  if (g.dx.data && (!g.dx.is_direct() || !w_)) return false;
  return !g.dw.memory.data || (g.x.is_direct() && is_canonical(g.dw, order_));
}

Convolution::ChannelsWork Convolution::lay_out_channels(Workspace* workspace, const Run& run, const Gradients& g) const {
  ChannelsWork work = {};
  if (g.db.data) work.sums = workspace->take<double>(output_.extent[2]);
  if (g.dw.memory.data) work.algorithm = workspace->take(bytes_to_weights(run.choice, g.batch));
  return work;
}

size_t Convolution::channels_bytes(const Run& run, const Gradients& g) const {
  Workspace counted;
  lay_out_channels(&counted, run, g);
  return counted.used();
}

void Convolution::take_channel(const depthwise::Channels& channels, const Run& run, const Gradients& g, size_t channel,
                               float* dz, std::byte* scratch, std::byte* block) const {
  Workspace workspace(block);
  const ChannelsWork work = lay_out_channels(&workspace, run, g);
  if (work.sums) work.sums[channel] = sum_channel(dz, g.batch, output_.extent[0] * output_.extent[1]);
  const WeightGradient to_w = {work.algorithm ? g.x.planes(0) : Planes{}, {}, nullptr, false};
  const InputGradient to_x = {{}, w_, g.dx.data ? g.dx.planes(0) : Planes{}, g.dx_view.accumulate, nullptr, nullptr};
  if (work.algorithm && g.dx.data && channels.adds_both())
    return channels.add_gradients(to_x, to_w, channel, dz, work.algorithm);
  if (work.algorithm) channels.sum_weight_gradient(to_w, channel, dz, scratch, work.algorithm);
  if (g.dx.data) channels.add_input_gradient(to_x, channel, dz, scratch);
}

void Convolution::finish_channels(const depthwise::Channels& channels, const Run& run, const Gradients& g,
                                  std::byte* block) const {
  Workspace workspace(block);
  const ChannelsWork work = lay_out_channels(&workspace, run, g);
  if (work.algorithm)
    channels.finish_weight_gradient({{}, {}, static_cast<float*>(g.dw.memory.data), g.dw.memory.accumulate},
                                    work.algorithm);
  if (work.sums) put_bias_gradient(g, work.sums);
}

void Convolution::put_gradients(const Gradients& g, const float* dw, const double* db, size_t threads) const {
  if (g.dw.memory.data) put_weights(g.dw, order_, dw, threads);
  if (g.db.data) put_bias_gradient(g, db);
}

void Convolution::put_bias_gradient(const Gradients& g, const double* sums) const {
  const Kernels& kernels = targets.best();
  auto* data = static_cast<std::byte*>(g.db.data);
  for (size_t c = 0; c < output_.extent[2]; ++c) {
    void* at = data + c * g.db_stride * bytes_of(g.db.type);
    float value = 0.0f;
    if (g.db.accumulate) kernels.load(g.db.type, at, 1, 1, &value);
    value = static_cast<float>(value + sums[c]);
    kernels.store(g.db.type, at, 1, 1, &value);
  }
}

}  // namespace obn::convolution
