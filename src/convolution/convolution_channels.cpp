// A depthwise layer, channel by channel: for layers that do something else with each channel while it is near.
#include "convolution/convolution_filter.h"

namespace obn::convolution {

// One channel in, one out.
Problem Convolution::channel_problem(const Run& run, size_t batch) const {
  Problem problem = run.problem;
  problem.batch = batch;
  problem.in_channels = problem.out_channels = problem.groups = 1;
  return problem;
}

bool Convolution::runs_by_channel(const Run& run, const Images& x) const {
  return run.choice.forward == &depthwise_forward && problem_.in_channels == problem_.out_channels && !transposed_ &&
         !is_integer_ && activation_.is_identity() && x.is_direct() && w_ && (b_ || !has_bias_);
}

void Convolution::run_channel(const Run& run, size_t batch, const Images& x, float* z, size_t channel) const {
  Planes from = x.planes(0), to = dense_planes(output_, z);
  from.data += channel * from.plane;
  to.data += channel * to.plane;
  const float* w = w_ + channel * weights_.kw * weights_.kh;
  run.choice.forward->run(channel_problem(run, batch), {from, w, to, b_ ? b_ + channel : nullptr, nullptr}, 1, nullptr);
}

bool Convolution::runs_by_channel(const Run& run, const Gradients& g) const {
  if (run.choice.input_gradient != &depthwise_input_gradient ||
      run.choice.weight_gradient != &depthwise_weight_gradient || transposed_ ||
      problem_.in_channels != problem_.out_channels || !activation_.is_identity())
    return false;
  if (g.dx.data && (!g.dx.is_direct() || !w_)) return false;
  return !g.dw.memory.data || (g.x.is_direct() && is_canonical(g.dw, order_));
}

size_t Convolution::channel_bytes(const Run& run, const Gradients& g) const {
  return g.dw.memory.data ? run.choice.weight_gradient->work_bytes(channel_problem(run, g.batch)) : 0;
}

void Convolution::run_channel(const Run& run, const Gradients& g, float* u, std::byte* room, size_t channel) const {
  const Problem problem = channel_problem(run, g.batch);
  const size_t taps = weights_.kw * weights_.kh;
  View plane = output_;  // one channel of u
  plane.extent[2] = 1;
  plane.count = plane.span = plane.packed_batch = plane.extent[0] * plane.extent[1];
  const Images images = {&plane, reinterpret_cast<std::byte*>(u), plane.count};
  const Planes dz = images.planes(0);
  if (g.db.data) {
    double partial[kSumGroups], sum = 0.0;
    make_output_gradient({images, {}, nullptr, false, nullptr, partial, &sum}, 0, g.batch, 1);
    put_bias_gradient(g, channel, sum);
  }
  if (g.dw.memory.data) {
    Planes x = g.x.planes(0);
    x.data += channel * x.plane;
    float* dw = static_cast<float*>(g.dw.memory.data) + channel * taps;
    run.choice.weight_gradient->run(problem, {x, dz, dw, g.dw.memory.accumulate}, 1, room);
  }
  if (g.dx.data) {
    Planes dx = g.dx.planes(0);
    dx.data += channel * dx.plane;
    run.choice.input_gradient->run(problem, {dz, w_ + channel * taps, dx, g.dx_view.accumulate, nullptr, nullptr}, 1,
                                   nullptr);
  }
}

}  // namespace obn::convolution
