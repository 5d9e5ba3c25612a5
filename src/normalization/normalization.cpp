// Normalization, the desk: checks every argument and keeps what a training call leaves for the gradients. Letters as in
// normalization.h.
#include "normalization/normalization.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/describe.h"
#include "base/status.h"
#include "base/types.h"
#include "base/workspace.h"

namespace obn::normalization {
namespace {

constexpr char kKind[] = "normalization";

int check_float(const View& view, const char* argument) {
  if (is_float_type(view.type)) return 0;
  return fail("%s: expected float32, float16 or bfloat16; got %s", argument, name_of(view.type));
}

int check_same_shape(const View& view, const View& like, const char* argument) {
  if (view.layout == like.layout && std::equal(like.extent, like.extent + like.rank, view.extent)) return 0;
  ShapeText expected, got;
  return fail("%s: expected %s in layout %s; got %s in layout %s", argument, shape_text(like, &expected),
              name_of(like.layout), shape_text(view, &got), name_of(view.layout));
}

Range range_of(const View& view, const void* data, size_t batch, size_t stride) {
  if (batch == 0) return {0, 0};
  const auto first = reinterpret_cast<uintptr_t>(data);
  return {first, first + ((batch - 1) * stride + view.span) * bytes_of(view.type)};
}

int check_ranges(const Range& a, const char* a_argument, const Range& b, const char* b_argument) {
  if (a.end <= b.first || b.end <= a.first) return 0;
  return fail("%s: expected memory apart from %s; the two overlap", a_argument, b_argument);
}

}  // namespace

// ---- creation ----

Normalization::Normalization(const Options& options) : Filter(kKind, options), state(options) {
  plan.kernels = &targets.best();
  plan.threads = options.threads;
}

Normalization::~Normalization() {
  options().release(gamma_block_);
  options().release(beta_block_);
}

void Normalization::describe(Description* description) const {
  constexpr const char* kNames[] = {"batch_norm", "instance_norm", "layer_norm", "group_norm"};
  description->kinds[0] = kNames[static_cast<size_t>(plan.kind)];
  description->inputs[0] = &x_;
  description->output = &y_;
}

int Normalization::prepare(BNNSFilterType type, const BNNSLayerParametersNormalization& p) {
  if (prepare_geometry(type, p) != 0) return -1;
  plan.forward_way = choose_forward(plan);
  plan.backward_way = choose_backward(plan);
  if (!(p.momentum >= 0.0f && p.momentum <= 1.0f))
    return fail("momentum: expected a number from 0 to 1; got %g", static_cast<double>(p.momentum));
  if (!(p.epsilon >= 0.0f) || std::isinf(p.epsilon))
    return fail("epsilon: expected a number of at least 0; got %g", static_cast<double>(p.epsilon));
  plan.momentum = p.momentum;
  plan.epsilon = p.epsilon;
  if (activation::Fused::read(p.activation, "activation", &plan.activation) != 0) return -1;
  if (!plan.activation.is_elementwise())
    return fail("activation: expected an element-wise function; got %s", activation::name_of(p.activation.function));
  plan.is_relu = p.activation.function == BNNSActivationFunctionRectifiedLinear;
  has_gamma_ = p.gamma_desc.data;
  has_beta_ = p.beta_desc.data;
  // Rows want both of γ and β, or none.
  const bool is_needed = plan.is_rows && (has_gamma_ || has_beta_);
  if (prepare_parameter(p.gamma_desc, "gamma", 1.0f, is_needed, &plan.gamma, &gamma_block_) != 0 ||
      prepare_parameter(p.beta_desc, "beta", 0.0f, is_needed, &plan.beta, &beta_block_) != 0)
    return -1;
  if (plan.kind != Kind::batch && plan.kind != Kind::instance) return 0;
  if (prepare_moving(p.moving_mean_desc, "moving_mean", &plan.moving_mean, &plan.moving_mean_step) != 0 ||
      prepare_moving(p.moving_variance_desc, "moving_variance", &plan.moving_variance,
                     &plan.moving_variance_step) != 0)
    return -1;
  return check_parameters_apart(p);
}

int Normalization::prepare_geometry(BNNSFilterType type, const BNNSLayerParametersNormalization& p) {
  switch (type) {
    case BNNSBatchNorm: plan.kind = Kind::batch; break;
    case BNNSInstanceNorm: plan.kind = Kind::instance; break;
    case BNNSLayerNorm: plan.kind = Kind::layer; break;
    case BNNSGroupNorm: plan.kind = Kind::group; break;
    default:
      return fail("type: expected batch (2), instance (3), layer (4) or group norm (5); got %u",
                  static_cast<unsigned>(type));
  }
  if (read_view(p.i_desc, Access::read, "input", &x_) != 0 || check_float(x_, "input") != 0 ||
      read_view(p.o_desc, Access::write, "output", &y_) != 0 || check_float(y_, "output") != 0)
    return -1;
  if (x_.rank != 1 && x_.layout != BNNSDataLayoutImageCHW)
    return fail("input: expected layout ImageCHW or Vector; got %s", name_of(x_.layout));
  if (check_same_shape(y_, x_, "output") != 0) return -1;
  const bool is_vector = x_.rank == 1;
  plan.w = is_vector ? 1 : x_.extent[0];
  plan.h = is_vector ? 1 : x_.extent[1];
  plan.c = x_.extent[is_vector ? 0 : 2];
  plan.runs = plan.c;
  plan.length = plan.h * plan.w;
  plan.group_runs = 1;
  plan.is_rows = plan.kind == Kind::layer;
  if (plan.kind == Kind::layer) {
    if (p.normalization_axis > 2) return fail("axis: expected 0, 1 or 2; got %zu", p.normalization_axis);
    plan.runs = p.normalization_axis == 0 ? 1 : p.normalization_axis == 1 ? plan.c : plan.c * plan.h;
    plan.length = x_.count / plan.runs;
  }
  if (plan.kind == Kind::group) {
    const size_t groups = p.num_groups == 0 ? 1 : p.num_groups;
    if (plan.c % groups != 0)
      return fail("num_groups: expected a divisor of %zu channels; got %zu", plan.c, groups);
    plan.group_runs = plan.c / groups;
    if (plan.length == 1) {  // the channels of a group lie side by side, each with its own γ
      plan.is_rows = true;
      plan.runs = groups;
      plan.length = plan.group_runs;
      plan.group_runs = 1;
    }
  }
  return 0;
}

// γ and β have one value per channel; of layer norm one per value of a sample or of its normalised part.
int Normalization::check_count(const View& view, const char* argument) const {
  ShapeText got;
  if (plan.kind == Kind::layer) {
    if (view.count == plan.length || view.count == plan.sample()) return 0;
    return fail("%s: expected %zu values, as a sample has, or %zu, as its normalized part; got %s", argument,
                plan.sample(), plan.length, shape_text(view, &got));
  }
  if (view.count == plan.c) return 0;
  return fail("%s: expected %zu values, one per channel; got %s", argument, plan.c, shape_text(view, &got));
}

// A parameter that is not given is left out, or made of `absent` where rows need one.
int Normalization::prepare_parameter(const BNNSNDArrayDescriptor& descriptor, const char* argument, float absent,
                                     bool is_needed, Parameter* parameter, void** block) {
  View view;
  size_t unused;
  if (descriptor.data) {
    if (read_view(descriptor, Access::read, argument, &view) != 0 || check_float(view, argument) != 0 ||
        check_count(view, argument) != 0 ||
        read_batch(view, view.data, 1, 0, Access::read, argument, &unused) != 0)
      return -1;
    parameter->count = view.count;
    parameter->walk = activation::walk_of(view, view.data, 1, 0);
    if (options().use_client_ptr) {
      const bool is_packed = view.type == BNNSDataTypeFloat32 && view.is_packed();
      parameter->values = is_packed ? static_cast<const float*>(view.data) : nullptr;
      parameter->is_read_each_call = !is_packed;
      own_[own_count_++] = {range_of(view, view.data, 1, 0), argument};
      return 0;
    }
  } else {
    if (!is_needed) return 0;
    parameter->count = plan.kind == Kind::layer ? plan.length : plan.c;
  }
  if (parameter->count > SIZE_MAX / sizeof(float))
    return fail("%s: expected a size that can be addressed; %zu values overflow", argument, parameter->count);
  *block = options().get(parameter->count * sizeof(float));
  if (!*block) return -1;
  float* copy = static_cast<float*>(*block);
  if (descriptor.data) {
    activation::Cursor from(parameter->walk, 0);
    activation::read_row(activation::targets.best(), from, parameter->count, copy);
  } else {
    std::fill_n(copy, parameter->count, absent);
  }
  parameter->values = copy;
  return 0;
}

// Running statistics stay the caller's: they are results.
int Normalization::prepare_moving(const BNNSNDArrayDescriptor& descriptor, const char* argument, float** values,
                                  size_t* step) {
  if (!descriptor.data) return 0;
  View& view = moving_view_[moving_count_];
  size_t unused;
  if (read_view(descriptor, Access::write, argument, &view) != 0 || check_count(view, argument) != 0 ||
      read_batch(view, view.data, 1, 0, Access::write, argument, &unused) != 0)
    return -1;
  if (view.type != BNNSDataTypeFloat32) return fail("%s: expected float32; got %s", argument, name_of(view.type));
  const activation::Walk walk = activation::walk_of(view, view.data, 1, 0);
  if (walk.rank != 1) {
    ShapeText got;
    return fail("%s: expected %zu values at equal distances; got %s", argument, plan.c, shape_text(view, &got));
  }
  *values = static_cast<float*>(view.data);
  *step = walk.stride[0];
  moving_[moving_count_++] = {argument, &view, view.data, 0, 1};
  own_[own_count_++] = {range_of(view, view.data, 1, 0), argument};
  return 0;
}

// Running statistics are written: they lie apart from each other and from γ and β, even where those are copied.
int Normalization::check_parameters_apart(const BNNSLayerParametersNormalization& p) const {
  if (moving_count_ == 2 && obn::check_apart(moving_[1], moving_[0]) != 0) return -1;
  const struct {
    const BNNSNDArrayDescriptor& descriptor;
    const char* argument;
  } parameters[] = {{p.gamma_desc, "gamma"}, {p.beta_desc, "beta"}};
  for (const auto& [descriptor, argument] : parameters) {
    View view;
    if (!descriptor.data) continue;
    if (read_view(descriptor, Access::read, argument, &view) != 0) return -1;
    const Place read = {argument, &view, view.data, 0, 1};
    if (for_moving([&](const Place& moving) { return obn::check_apart(moving, read); }) != 0) return -1;
  }
  return 0;
}

// Refuses results that would be written over parameters or running statistics of the caller.
int Normalization::check_own_apart(const Range& range, const char* argument) const {
  for (size_t k = 0; k < own_count_; ++k)
    if (check_ranges(range, argument, own_[k].range, own_[k].argument) != 0) return -1;
  return 0;
}

int Normalization::check_own_apart(const Place& written) const {
  if (!written.data) return 0;
  return check_own_apart(range_of(*written.view, written.data, written.batch, written.step), written.word);
}

// ---- forward ----

int Normalization::check_output(size_t batch, const void* y, size_t requested, size_t* stride) const {
  if (read_batch(y_, y, batch, requested, Access::write, "output", stride) != 0) return -1;
  return check_own_apart(range_of(y_, y, batch, *stride), "output");
}

int Normalization::apply_normalization(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride,
                                       bool training) {
  if (batch == 0) return 0;
  if (read_batch(x_, x, batch, x_stride, Access::read, "input", &x_stride) != 0 ||
      check_output(batch, y, y_stride, &y_stride) != 0 ||
      activation::check_places({&y_, y, y_stride}, "output", {&x_, x, x_stride}, "input", batch) != 0)
    return -1;
  const Place in = {"input", &x_, x, x_stride, batch};
  if (training && for_moving([&](const Place& moving) { return obn::check_apart(moving, in); }) != 0) return -1;
  const Tensor from(x_, x, x_stride), to(y_, y, y_stride);
  const bool borrows = training && borrows_ && can_stay(from);
  if (borrows && activation::check_apart({&y_, y, y_stride}, "output", {&x_, x, x_stride}, "the borrowed input",
                                         batch) != 0)
    return -1;
  std::byte* work;
  if (find_workspace(forward_bytes(plan, batch, from, to, training), &work) != 0 ||
      (training && state.reserve(plan, batch, !borrows) != 0))
    return -1;
  if (training) {
    borrowed_ = borrows ? x : nullptr;
    borrowed_step_ = x_stride;
  }
  forward(plan, training ? &state : nullptr, batch, from, to, work);
  return 0;
}

// ---- backward ----

// A gradient of input or output: shape as in the forward call, any float type.
int Normalization::read_delta(const BNNSNDArrayDescriptor& descriptor, Access access, size_t batch, size_t requested,
                              const char* argument, View* view, size_t* stride) const {
  if (read_view(descriptor, access, argument, view) != 0 || check_same_shape(*view, x_, argument) != 0 ||
      check_float(*view, argument) != 0)
    return -1;
  return read_batch(*view, view->data, batch, requested, access, argument, stride);
}

int Normalization::read_parameter_delta(const BNNSNDArrayDescriptor& descriptor, const Parameter& parameter,
                                        bool is_given, const char* argument, View* view,
                                        ParameterGradient* gradient) const {
  size_t unused;
  if (read_view(descriptor, Access::write, argument, view) != 0 || check_float(*view, argument) != 0 ||
      check_count(*view, argument) != 0 ||
      read_batch(*view, view->data, 1, 0, Access::write, argument, &unused) != 0)
    return -1;
  if (is_given && view->count != parameter.count)
    return fail("%s: expected %zu values, as the parameter has; got %zu", argument, parameter.count, view->count);
  gradient->is_wanted = true;
  gradient->accumulate = view->accumulate;
  gradient->count = view->count;
  gradient->walk = activation::walk_of(*view, view->data, 1, 0);
  return 0;
}

// Some activations can be differentiated at some outputs only.
int Normalization::check_output_values(const Tensor& y, size_t batch) const {
  constexpr size_t kBlock = 512;
  float block[kBlock];
  for (size_t n = 0; n < batch; ++n) {
    activation::Walk walk = y.walk;
    walk.data += n * y.step * bytes_of(walk.type);
    activation::Cursor from(walk, 0);
    for (size_t i = 0; i < plan.sample(); i += kBlock) {
      const size_t count = std::min(kBlock, plan.sample() - i);
      activation::read_row(activation::targets.best(), from, count, block);
      if (!plan.activation.accepts(block, count))
        return fail("output: expected values from which the activation's gradient is known; got ambiguous ones");
    }
  }
  return 0;
}

int Normalization::check(const BackwardArguments& a, Gradients* g) const {
  const size_t batch = a.batch;
  if (!a.dy) return fail("grad_output: expected a descriptor; got NULL");
  if (check_batch(batch) != 0) return -1;
  if (read_delta(*a.dy, Access::read, batch, a.dy_stride, "grad_output", &g->dy_view, &g->dy_stride) != 0) return -1;
  g->dy = Tensor(g->dy_view, g->dy_view.data, g->dy_stride);
  const Range dy_range = range_of(g->dy_view, g->dy_view.data, batch, g->dy_stride);
  Range y_range = {0, 0}, dx_range = {0, 0}, x_range = {0, 0};
  if (borrowed_) x_range = range_of(x_, borrowed_, state.batch, borrowed_step_);
  if (!plan.activation.is_identity()) {
    if (plan.activation.check_backward() != 0) return -1;
    if (!a.y && batch > 0)
      return fail("output: expected the result of apply, which the activation's gradient needs; got NULL");
    if (read_batch(y_, a.y, batch, a.y_stride, Access::read, "output", &g->y_stride) != 0) return -1;
    g->y = Tensor(y_, a.y, g->y_stride);
    y_range = range_of(y_, a.y, batch, g->y_stride);
  }
  if (a.dx) {
    const char* name = "input_gradient";
    const View& dx = g->dx_view;
    size_t stride;
    if (read_delta(*a.dx, Access::write, batch, a.dx_stride, name, &g->dx_view, &stride) != 0) return -1;
    const activation::Operand target = {&dx, dx.data, stride};
    if (activation::check_places(target, name, {&g->dy_view, g->dy_view.data, g->dy_stride}, "grad_output", batch) != 0)
      return -1;
    if (g->y.is_given() && activation::check_places(target, name, {&y_, a.y, g->y_stride}, "output", batch) != 0)
      return -1;
    g->dx = Tensor(dx, dx.data, stride);
    g->accumulate = dx.accumulate;
    dx_range = range_of(dx, dx.data, batch, stride);
    if (check_own_apart(dx_range, name) != 0) return -1;
    if (borrowed_ &&
        activation::check_apart(target, name, {&x_, borrowed_, borrowed_step_}, "the borrowed input", batch) != 0)
      return -1;
  }
  if (check_parameters(batch, a.dbeta, a.dgamma, g) != 0) return -1;
  const struct {
    const char* name;
    const View& view;
    bool is_wanted;
  } sums[] = {{"beta_gradient", g->beta_view, g->dbeta.is_wanted},
              {"gamma_gradient", g->gamma_view, g->dgamma.is_wanted}};
  for (const auto& sum : sums) {
    if (!sum.is_wanted) continue;
    const Range range = range_of(sum.view, sum.view.data, 1, 0);
    if (check_ranges(range, sum.name, dy_range, "grad_output") != 0 ||
        check_ranges(range, sum.name, y_range, "output") != 0 ||
        check_ranges(range, sum.name, dx_range, "input_gradient") != 0 ||
        check_ranges(range, sum.name, x_range, "the borrowed input") != 0)
      return -1;
  }
  return plan.activation.depends_on_values() ? check_output_values(g->y, batch) : 0;
}

// No samples go with any training call, and with none.
int Normalization::check_batch(size_t batch) const {
  if (batch == 0) return 0;
  if (state.batch == 0) return fail("filter: expected an apply in training mode before its gradients; there was none");
  if (batch == state.batch) return 0;
  return fail("batch: expected %zu samples, as in the last training apply; got %zu", state.batch, batch);
}

int Normalization::check_parameters(size_t batch, BNNSNDArrayDescriptor* dbeta, BNNSNDArrayDescriptor* dgamma,
                                    Gradients* g) const {
  if (check_batch(batch) != 0) return -1;
  const struct {
    BNNSNDArrayDescriptor* descriptor;
    const Parameter& parameter;
    const char* name;
    View* view;
    ParameterGradient* gradient;
  } sums[] = {{dbeta, plan.beta, "beta_gradient", &g->beta_view, &g->dbeta},
              {dgamma, plan.gamma, "gamma_gradient", &g->gamma_view, &g->dgamma}};
  for (const auto& sum : sums) {
    if (!sum.descriptor) continue;
    const bool is_given = &sum.parameter == &plan.beta ? has_beta_ : has_gamma_;
    if (read_parameter_delta(*sum.descriptor, sum.parameter, is_given, sum.name, sum.view, sum.gradient) != 0)
      return -1;
    if (check_own_apart(range_of(*sum.view, sum.view->data, 1, 0), sum.name) != 0) return -1;
  }
  if (!dbeta || !dgamma) return 0;
  return check_ranges(range_of(g->beta_view, g->beta_view.data, 1, 0), "beta_gradient",
                      range_of(g->gamma_view, g->gamma_view.data, 1, 0), "gamma_gradient");
}

int Normalization::apply_normalization_backward(const BackwardArguments& a) {
  Gradients g;
  if (check(a, &g) != 0) return -1;
  if (!a.dx && !a.dbeta && !a.dgamma) return 0;
  if (a.batch == 0) {
    g.clear_sums();
    return 0;
  }
  std::byte* work;
  if (find_workspace(backward_bytes(plan, a.batch, g.dy, g.y, g.dx, g.dbeta, g.dgamma), &work) != 0) return -1;
  backward(plan, state, g.dy, g.y, g.dx, g.accumulate, g.dbeta, g.dgamma, work);
  return 0;
}

int Normalization::set_borrow_input(int on) {
  if (on != 0 && on != 1) return fail("on: expected 1 or 0; got %d", on);
  const bool borrows = on == 1;
  if (borrows != borrows_ && state.batch > 0)
    return fail("filter: expected the choice before the first apply in training mode; there was one");
  borrows_ = borrows;
  return 0;
}

size_t Normalization::kept_bytes(size_t batch) const {
  if (check_batch_size(x_, batch) != 0 || check_batch_size(y_, batch) != 0) return SIZE_MAX;
  const Tensor x(x_, kKind, x_.packed_batch);  // somewhere, as it was described
  return State::bytes_for(plan, batch, !(borrows_ && can_stay(x)));
}

size_t Normalization::work_bytes(size_t batch) const {
  if (batch == 0) return 0;
  if (check_batch_size(x_, batch) != 0 || check_batch_size(y_, batch) != 0) return SIZE_MAX;
  const Tensor x(x_, kKind, x_.packed_batch), y(y_, kKind, y_.packed_batch);  // somewhere, as they were described
  ParameterGradient gradient;
  gradient.is_wanted = true;
  gradient.count = plan.kind == Kind::layer ? plan.length : plan.c;
  return std::max(forward_bytes(plan, batch, x, y, true),
                  backward_bytes(plan, batch, y, plan.activation.is_identity() ? Tensor() : y, x, gradient, gradient));
}

namespace {

BNNSFilter create(BNNSFilterType type, const BNNSLayerParametersNormalization& parameters,
                  const BNNSFilterParameters* filter_params) {
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  Normalization* filter = options.make<Normalization>(options);
  if (!filter) return nullptr;
  return publish(filter, filter->prepare(type, parameters));
}

Normalization* find(BNNSFilter filter) { return static_cast<Normalization*>(find_filter(filter, kKind)); }

}  // namespace
}  // namespace obn::normalization

// ---- the C interface ----

extern "C" {

BNNSFilter BNNSFilterCreateLayerNormalization(BNNSFilterType normType,
                                              const BNNSLayerParametersNormalization* layer_params,
                                              const BNNSFilterParameters* filter_params) {
  if (!layer_params) {
    obn::fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  return obn::normalization::create(normType, *layer_params, filter_params);
}

int BNNSNormalizationFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride, void* out,
                                      size_t out_stride, bool training) {
  auto* found = obn::normalization::find(filter);
  if (!found) return -1;
  return obn::call_filter(found, obn::Pass::forward, batch_size, [&] {
    return found->apply_normalization(batch_size, in, in_stride, out, out_stride, training);
  });
}

int BNNSNormalizationFilterApplyBackwardBatch(BNNSFilter filter, size_t batch_size, BNNSNDArrayDescriptor* in_delta,
                                              size_t in_delta_stride, const void* out, size_t out_stride,
                                              BNNSNDArrayDescriptor* out_delta, size_t out_delta_stride,
                                              BNNSNDArrayDescriptor* beta_delta, BNNSNDArrayDescriptor* gamma_delta) {
  auto* found = obn::normalization::find(filter);
  if (!found) return -1;
  return obn::call_filter(found, obn::Pass::backward, batch_size, [&] {
    return found->apply_normalization_backward({batch_size, in_delta, in_delta_stride, out, out_stride, out_delta,
                                                out_delta_stride, beta_delta, gamma_delta});
  });
}
}
