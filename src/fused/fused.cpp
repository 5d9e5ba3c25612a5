// Fused layers, the desk: checks every argument of both layers, then runs them on z and u, which nobody else sees.
//
// What a pair with a normalization keeps between a training call and its gradients: z, and for every group of values
// the three numbers that make x̂ of z (State in normalization.h). Where z is not float32 the normalization keeps a
// float32 copy of it instead. Otherwise z lies in the place of y where it can, or in the workspace of the calling
// thread, as u does. A convolution of few taps before a batch norm needs no z at all: fused_few_channels.h. With a pooling
// behind, planes may be small enough for fused_nchwc.h. Letters as in fused.h.
#include "fused/fused.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "activation/activation_walk.h"
#include "base/describe.h"
#include "base/kept_block.h"
#include "base/status.h"
#include "base/types.h"
#include "base/workspace.h"
#include "fused/fused_few_channels.h"
#include "fused/fused_nchwc.h"

namespace obn::fused {

const char kKind[] = "fused";

int check_joint(const BNNSNDArrayDescriptor& output, const char* of, const BNNSNDArrayDescriptor& input,
                const char* to) {
  View out, in;
  char out_word[40], in_word[40];
  std::snprintf(out_word, sizeof out_word, "output of the %s layer", of);
  std::snprintf(in_word, sizeof in_word, "input of the %s layer", to);
  if (read_view(output, Access::write, out_word, &out) != 0 || read_view(input, Access::read, in_word, &in) != 0)
    return -1;
  if (in.layout != out.layout || !std::equal(out.extent, out.extent + out.rank, in.extent)) {
    ShapeText expected, got;
    return fail("%s: expected %s in layout %s, as the %s layer's output; got %s in layout %s", in_word,
                shape_text(out, &expected), name_of(out.layout), of, shape_text(in, &got), name_of(in.layout));
  }
  if (in.type != out.type)
    return fail("%s: expected %s, as the %s layer's output; got %s", in_word, name_of(out.type), of, name_of(in.type));
  for (size_t k = 0; k < out.rank; ++k)
    if (out.extent[k] > 1 && in.stride[k] != out.stride[k])
      return fail("%s: expected stride %zu on axis %zu, as the %s layer's output; got %zu", in_word, out.stride[k], k,
                  of, in.stride[k]);
  return 0;
}

BNNSNDArrayDescriptor packed(BNNSNDArrayDescriptor descriptor) {
  std::fill_n(descriptor.stride, BNNS_MAX_TENSOR_DIMENSION, size_t{0});
  return descriptor;
}

size_t check_saved(size_t bytes, size_t batch) {
  if (bytes == SIZE_MAX) fail("batch: expected a size that can be kept for the gradients; %zu samples overflow", batch);
  return bytes;
}

namespace {

bool is_norm(BNNSFilterType type) {
  return type == BNNSBatchNorm || type == BNNSInstanceNorm || type == BNNSLayerNorm || type == BNNSGroupNorm;
}

// ---- with a normalization ----

// body(channel, u), as the normalization calls it.
template <class Body>
normalization::ChannelSink sink_of(const Body& body) {
  return {[](void* context, size_t channel, float* u) { (*static_cast<const Body*>(context))(channel, u); },
          const_cast<void*>(static_cast<const void*>(&body))};
}

template <class First>
class Normalized final : public Fused {
 public:
  Normalized(const Options& options, BNNSFilterType type)
      : Fused(kKind, options), first_(options, type), second_(options), few_channels_(options), nchwc_(options),
        z_block_(options) {}

  int prepare(const BNNSFilterType* types, const void* const* blocks) override {
    BNNSLayerParametersNormalization block = *static_cast<const BNNSLayerParametersNormalization*>(blocks[1]);
    const BNNSNDArrayDescriptor* joint = First::output_of(blocks[0]);
    if (!joint || check_joint(*joint, "first", block.i_desc, "second") != 0) return -1;
    block.i_desc = packed(block.i_desc);
    if (first_.prepare(blocks[0]) != 0 || second_.prepare(types[1], block) != 0 ||
        second_.for_moving([&](const Place& moving) { return first_.check_own_apart(moving); }) != 0)
      return -1;
    has_few_channels_ = first_.convolution() && few_channels_.prepare(first_.convolution(), &second_);
    choose();
    return 0;
  }
  bool takes_many() const override { return First::kTakesMany; }
  int apply_fused(const ForwardArguments& arguments) override;
  int apply_fused_backward(const BackwardArguments& arguments) override;
  int set_winograd(int on) override {
    return first_.convolution() ? first_.convolution()->set_winograd(on) : Fused::set_winograd(on);
  }
  int set_precision(int precision) override {
    return first_.fully_connected() ? first_.fully_connected()->set_precision(precision)
                                    : Fused::set_precision(precision);
  }
  void forget() override { second_.forget(); }
  size_t work_bytes(size_t batch) const override;
  size_t kept_bytes(size_t batch) const override;
  void describe(Description* description) const override {
    Description second;
    second_.describe(&second);
    first_.describe(description);
    description->kinds[1] = second.kinds[0];
    description->output = second.output;
    if (!has_few_channels_) return;
    description->forward = description->input_gradient = "few channels";
    description->weight_gradient = nullptr;
  }

  const View* output() const override { return &second_.output(); }
  int check_output_place(const ForwardArguments& a, const Place& y) const override {
    typename First::Forward f;
    if (first_.check(a, &f) != 0 || check_moving(a, f) != 0 || first_.check_apart(a, f, y) != 0) return -1;
    return second_.check_own_apart(y);
  }
  void join(const pooling::Plan& pooling, const View& y) override {
    pooled_ = &y;
    nchwc_joins_ = first_.convolution() && !has_few_channels_ && nchwc_.join(first_.convolution(), &second_, pooling, y);
    choose();
  }
  bool takes_pooling(size_t batch) const override { return nchwc_joins_ && nchwc_.takes(batch); }
  size_t pooled_work_bytes(size_t batch) const override { return nchwc_.work_bytes(batch); }
  size_t pooled_saved_bytes(size_t batch) const override { return nchwc_.saved_bytes(batch); }

 private:
  using Tensor = normalization::Tensor;

  // A call, checked.
  struct ForwardCall {
    const ForwardArguments& a;
    size_t y_step = 0;
    typename First::Forward first = {};
  };
  struct BackwardCall {
    const BackwardArguments& a;
    bool first_is_wanted;
    normalization::Gradients second = {};
    typename First::Backward first = {};
  };

  // A way to run the pair. Creation chooses the first of a list that fits; whether it takes a call is asked where more
  // than shapes and types decides: the batch, the strides of gradients, which of them are wanted.
  template <class Call>
  struct Way {
    const char* name;
    bool (*fits)(const Normalized& pair);
    bool (*takes)(const Normalized& pair, const Call& call);
    int (Normalized::*run)(Call* call);
  };
  using ForwardWay = Way<ForwardCall>;
  using BackwardWay = Way<BackwardCall>;
  static const ForwardWay kForward[];  // best first; the last one fits and takes all
  static const BackwardWay kBackward[];

  static bool any(const Normalized&) { return true; }
  template <class Call>
  static bool always(const Normalized&, const Call&) {
    return true;
  }
  void choose() {
    for (forward_ = kForward; !forward_->fits(*this);) ++forward_;
    for (backward_ = kBackward; !backward_->fits(*this);) ++backward_;
  }
  template <class Call>
  int run(const Way<Call>* way, Call* call) {
    while (!way->fits(*this) || !way->takes(*this, *call)) ++way;
    return (this->*way->run)(call);
  }

  int run_few_channels(ForwardCall* call);
  int run_few_channels(BackwardCall* call) { return few_channels_.apply_backward(call->first.g, call->second); }
  int run_nchwc(ForwardCall* call);
  int run_nchwc(BackwardCall* call) { return nchwc_.apply_backward(call->first.g, call->second); }
  int run_by_channels(BackwardCall* call);
  int run_in_turn(ForwardCall* call);
  int run_in_turn(BackwardCall* call);

  int check_output(const ForwardArguments& a, size_t* y_step) const;
  int check_moving(const ForwardArguments& a, const typename First::Forward& f) const;
  int check_output_gradient(const BackwardArguments& a, normalization::Gradients* g) const;

  int check_places(const BackwardCall& call) const;
  Tensor tensor(const void* data) const { return Tensor(first_.output(), data, first_.output().count); }
  bool keeps_z() const { return first_.output().type == BNNSDataTypeFloat32; }
  bool takes_place_of(const void* y, size_t y_step, size_t batch) const;
  size_t z_bytes(size_t batch) const;
  int reserve(size_t batch, const void* y);

  First first_;
  normalization::Normalization second_;
  FewChannelsNorm few_channels_;
  NchwcNorm nchwc_;
  const ForwardWay* forward_ = nullptr;
  const BackwardWay* backward_ = nullptr;
  bool has_few_channels_ = false;  // few_channels_ can run both layers
  bool nchwc_joins_ = false;       // nchwc_ can run all three
  const View* pooled_ = nullptr;   // the output of the pooling
  KeptBlock z_block_;
  std::byte* z_ = nullptr;  // of the last training call; lies in the block, aligned as y was
};

// Memory for what a training call saves, or -1 with a sentence.
template <class First>
int Normalized<First>::reserve(size_t batch, const void* y) {
  normalization::State& state = second_.state;
  if (keeps_z() && z_block_.reserve(z_bytes(batch) + kAlignment, &state.batch) != 0) return -1;
  if (state.reserve(second_.plan, batch, !keeps_z()) != 0) return -1;
  if (!keeps_z()) return 0;
  const bool is_float32 = second_.output().type == BNNSDataTypeFloat32;
  z_ = z_block_.data() + (is_float32 ? reinterpret_cast<uintptr_t>(y) % kAlignment : 0);
  return 0;
}

template <class First>
size_t Normalized<First>::kept_bytes(size_t batch) const {
  if (check_batch_size(first_.output(), batch) != 0 || second_.kept_bytes(batch) == SIZE_MAX) return SIZE_MAX;
  if (has_few_channels_) return few_channels_.saved_bytes(batch);
  const size_t state = check_saved(normalization::State::bytes_for(second_.plan, batch, !keeps_z()), batch);
  const size_t z = keeps_z() ? z_bytes(batch) : 0;
  if (state == SIZE_MAX || z == SIZE_MAX) return SIZE_MAX;
  return state + z + (keeps_z() ? kAlignment : 0);
}

// Of float32 z; SIZE_MAX with a sentence where there are too many.
template <class First>
size_t Normalized<First>::z_bytes(size_t batch) const {
  size_t bytes;
  const bool fits = !__builtin_mul_overflow(batch, first_.output().count * sizeof(float), &bytes);
  return check_saved(fits && bytes <= SIZE_MAX / 4 ? bytes : SIZE_MAX, batch);
}

// True where y has the shape of z without gaps: then an inference needs no other memory for z.
template <class First>
bool Normalized<First>::takes_place_of(const void* y, size_t y_step, size_t batch) const {
  const View& z = first_.output();
  return activation::same_place({&second_.output(), y, y_step}, {&z, y, z.count}, batch) &&
         second_.output().type == z.type;
}

template <class First>
int Normalized<First>::check_output(const ForwardArguments& a, size_t* y_step) const {
  if (!a.is_pooled) return second_.check_output(a.batch, a.y, a.y_stride, y_step);
  if (read_batch(*pooled_, a.y, a.batch, a.y_stride, Access::write, "output", y_step) != 0) return -1;
  return second_.check_own_apart({"output", pooled_, a.y, *y_step, a.batch});
}

// The running statistics, which training writes.
template <class First>
int Normalized<First>::check_moving(const ForwardArguments& a, const typename First::Forward& f) const {
  if (!a.training) return 0;
  return second_.for_moving([&](const Place& moving) { return first_.check_apart(a, f, moving); });
}

template <class First>
int Normalized<First>::apply_fused(const ForwardArguments& a) {
  if (a.batch == 0) return 0;
  ForwardCall call = {a};
  if (first_.check(a, &call.first) != 0 || check_moving(a, call.first) != 0 || check_output(a, &call.y_step) != 0 ||
      first_.check_apart(a, call.first,
                         {"output", a.is_pooled ? pooled_ : &second_.output(), a.y, call.y_step, a.batch}) != 0)
    return -1;
  return run(forward_, &call);
}

template <class First>
int Normalized<First>::run_few_channels(ForwardCall* call) {
  const ForwardArguments& a = call->a;
  return few_channels_.apply(a.batch, call->first.x, static_cast<float*>(a.y), call->y_step, a.training);
}

template <class First>
int Normalized<First>::run_nchwc(ForwardCall* call) {
  return nchwc_.apply(call->a.batch, call->first.x, static_cast<float*>(call->a.y), call->y_step);
}

template <class First>
int Normalized<First>::run_in_turn(ForwardCall* call) {
  const ForwardArguments& a = call->a;
  const typename First::Forward& f = call->first;
  const Tensor to(second_.output(), a.y, call->y_step);
  const bool keeps = a.training && keeps_z(), in_place = !a.training && takes_place_of(a.y, call->y_step, a.batch);
  if (keeps && z_bytes(a.batch) == SIZE_MAX) return -1;
  const normalization::Plan& plan = second_.plan;
  const auto lay_out = [&](Workspace* space, std::byte** z) {
    if (!keeps && !in_place) *z = space->take_samples(first_.output(), a.batch);
    const size_t bytes = forward_bytes(plan, a.batch, tensor(&f), to, a.training);
    return space->take(std::max(first_.bytes(f, a.batch), bytes));
  };
  Workspace counted;
  std::byte* z = static_cast<std::byte*>(a.y);
  lay_out(&counted, &z);
  std::byte* block;
  if (find_workspace(counted.used(), &block) != 0) return -1;
  Workspace space(block);
  std::byte* work = lay_out(&space, &z);
  if (a.training && reserve(a.batch, a.y) != 0) return -1;
  if (keeps) z = z_;
  first_.run(f, 0, a.batch, z, work);
  forward(plan, a.training ? &second_.state : nullptr, a.batch, tensor(z), to, work);
  return 0;
}

// What one layer writes lies apart from what the other one reads and writes. The gradient of an input of the output's
// shape may take the very place of the output gradient or the output, which have been read before it is written.
template <class First>
int Normalized<First>::check_places(const BackwardCall& call) const {
  const BackwardArguments& a = call.a;
  const normalization::Gradients& g = call.second;
  Place written[kPlaces], read[kPlaces];
  const size_t written_count = call.first_is_wanted ? first_.written(call.first, written) : 0;
  const size_t read_count = call.first_is_wanted ? first_.read(call.first, read) : 0;
  const Place arrays[] = {{"grad_output", &g.dy_view, g.dy_view.data, g.dy_stride, a.batch},
                          {"output", &second_.output(), g.y.walk.data, g.y_stride, a.batch}};
  const Place sums[] = {{"beta_gradient", &g.beta_view, g.dbeta.is_wanted ? g.beta_view.data : nullptr, 0, 1},
                        {"gamma_gradient", &g.gamma_view, g.dgamma.is_wanted ? g.gamma_view.data : nullptr, 0, 1}};
  for (size_t k = 0; k < written_count; ++k) {
    const Place& to = written[k];
    for (const Place& from : arrays) {
      const bool may_share = First::kTakesMany && to.batch == a.batch &&
                             activation::same_place({to.view, to.data, to.step}, {from.view, from.data, from.step},
                                                    a.batch);
      if (!may_share && check_apart(to, from) != 0) return -1;
    }
    for (const Place& sum : sums)
      if (check_apart(sum, to) != 0) return -1;
    if (second_.check_own_apart(to) != 0) return -1;
  }
  for (const Place& sum : sums) {
    for (size_t k = 0; k < read_count; ++k)
      if (check_apart(sum, read[k]) != 0) return -1;
    if (first_.check_own_apart(sum) != 0) return -1;
  }
  return 0;
}

// dy, y, dβ and dγ.
template <class First>
int Normalized<First>::check_output_gradient(const BackwardArguments& a, normalization::Gradients* g) const {
  BNNSNDArrayDescriptor* const* of_norm = a.parameters ? a.parameters + First::kParameters : nullptr;
  BNNSNDArrayDescriptor *dbeta = of_norm ? of_norm[0] : nullptr, *dgamma = of_norm ? of_norm[1] : nullptr;
  if (!a.is_pooled)
    return second_.check({a.batch, nullptr, 0, a.y, a.y_stride, a.dy, a.dy_stride, dbeta, dgamma}, g);
  if (!a.dy) return fail("grad_output: expected a descriptor; got NULL");
  if (second_.plan.activation.check_backward() != 0 || second_.check_parameters(a.batch, dbeta, dgamma, g) != 0 ||
      read_gradient(*a.dy, *pooled_, Access::read, a.batch, a.dy_stride, "grad_output", &g->dy_view,
                    &g->dy_stride) != 0)
    return -1;
  const Place dy = {"grad_output", &g->dy_view, g->dy_view.data, g->dy_stride, a.batch};
  if (dbeta && check_apart({"beta_gradient", &g->beta_view, g->beta_view.data, 0, 1}, dy) != 0) return -1;
  return dgamma ? check_apart({"gamma_gradient", &g->gamma_view, g->gamma_view.data, 0, 1}, dy) : 0;
}

template <class First>
int Normalized<First>::apply_fused_backward(const BackwardArguments& a) {
  if (first_.has_activation())
    return fail("activation: expected the identity in the first layer, whose gradients are asked for; got another");
  BackwardCall call = {a, First::is_wanted(a)};
  const normalization::Gradients& g = call.second;
  if (check_output_gradient(a, &call.second) != 0) return -1;
  if (call.first_is_wanted && first_.check(a, keeps_z() ? z_ : nullptr, &call.first) != 0) return -1;
  if (check_places(call) != 0) return -1;
  if (!call.first_is_wanted && !g.dbeta.is_wanted && !g.dgamma.is_wanted) return 0;
  if (a.batch == 0) {
    if (call.first_is_wanted) First::clear_sums(call.first);
    g.clear_sums();
    return 0;
  }
  return run(backward_, &call);
}

// The convolution takes u channel by channel, on the thread that made it.
template <class First>
int Normalized<First>::run_by_channels(BackwardCall* call) {
  const normalization::Gradients& g = call->second;
  first_.plan_channels(&call->first);
  std::byte *work, *sums;
  const auto lay_out = [&](Workspace* space) {
    work = space->take(backward_bytes(second_.plan, call->a.batch, g.dy, g.y, Tensor(), g.dbeta, g.dgamma));
    sums = space->take(first_.channels_bytes(call->first));
  };
  Workspace counted;
  lay_out(&counted);
  std::byte* block;
  if (find_workspace(counted.used(), &block) != 0) return -1;
  Workspace space(block);
  lay_out(&space);
  const auto take = [&](size_t channel, float* u) { first_.take_channel(call->first, channel, u, sums); };
  const normalization::ChannelSink sink = sink_of(take);
  backward(second_.plan, second_.state, g.dy, g.y, Tensor(), false, g.dbeta, g.dgamma, work, &sink);
  first_.finish_channels(call->first, sums);
  return 0;
}

template <class First>
int Normalized<First>::run_in_turn(BackwardCall* call) {
  const normalization::Plan& plan = second_.plan;
  const normalization::Gradients& g = call->second;
  const size_t batch = call->a.batch;
  const bool has_u = call->first_is_wanted;
  std::byte *u = nullptr, *work;
  const auto lay_out = [&](Workspace* space) {
    if (has_u) u = space->take_samples(first_.output(), batch);
    const size_t bytes = backward_bytes(plan, batch, g.dy, g.y, has_u ? tensor(call) : Tensor(), g.dbeta, g.dgamma);
    work = space->take(std::max(bytes, has_u ? first_.bytes(&call->first) : 0));
  };
  Workspace counted;
  lay_out(&counted);
  std::byte* block;
  if (find_workspace(counted.used(), &block) != 0) return -1;
  Workspace space(block);
  lay_out(&space);
  backward(plan, second_.state, g.dy, g.y, has_u ? tensor(u) : Tensor(), false, g.dbeta, g.dgamma, work, nullptr,
           First::kIsConvolution && plan.spans_batch());  // cut by channels, then by samples
  if (has_u) first_.run(&call->first, u, work);
  return 0;
}

template <class First>
const typename Normalized<First>::ForwardWay Normalized<First>::kForward[] = {
    {"one after the other", any, always<ForwardCall>, &Normalized::run_in_turn}};
template <class First>
const typename Normalized<First>::BackwardWay Normalized<First>::kBackward[] = {
    {"one after the other", any, always<BackwardCall>, &Normalized::run_in_turn}};

template <>
const Normalized<ConvolutionFirst>::ForwardWay Normalized<ConvolutionFirst>::kForward[] = {
    {"few channels", [](const Normalized& pair) { return pair.has_few_channels_; }, always<ForwardCall>,
     &Normalized::run_few_channels},
    {"nchwc", [](const Normalized& pair) { return pair.nchwc_joins_; },
     [](const Normalized&, const ForwardCall& call) { return call.a.is_pooled; }, &Normalized::run_nchwc},
    {"one after the other", any, always<ForwardCall>, &Normalized::run_in_turn}};
template <>
const Normalized<ConvolutionFirst>::BackwardWay Normalized<ConvolutionFirst>::kBackward[] = {
    {"few channels", [](const Normalized& pair) { return pair.has_few_channels_; }, always<BackwardCall>,
     &Normalized::run_few_channels},
    {"nchwc", [](const Normalized& pair) { return pair.nchwc_joins_; },
     [](const Normalized&, const BackwardCall& call) { return call.a.is_pooled; }, &Normalized::run_nchwc},
    {"by channels",
     [](const Normalized& pair) {
       return pair.keeps_z() && pair.second_.plan.spans_batch() && pair.first_.is_depthwise();
     },
     [](const Normalized& pair, const BackwardCall& call) {
       const normalization::Gradients& g = call.second;
       return call.first_is_wanted && takes_sink(pair.second_.plan, call.a.batch, g.dy, g.y) &&
              pair.first_.takes_channels(call.first);
     },
     &Normalized::run_by_channels},
    {"one after the other", any, always<BackwardCall>, &Normalized::run_in_turn}};

template <class First>
size_t Normalized<First>::work_bytes(size_t batch) const {
  if (batch == 0) return 0;
  if (has_few_channels_) return few_channels_.work_bytes(batch);
  const size_t first = first_.work_bytes(batch), second = second_.work_bytes(batch);
  if (first == SIZE_MAX || second == SIZE_MAX) return SIZE_MAX;
  Workspace space;
  space.take_samples(first_.output(), batch);
  space.take(std::max(first, second));
  Workspace by_channels;  // no array between the layers, but memory of both at a time
  by_channels.take(second);
  by_channels.take(first);
  return std::max(space.used(), by_channels.used());
}

// ---- with a quantization ----

template <class First>
class Quantized final : public Fused {
 public:
  Quantized(const Options& options, BNNSFilterType type) : Fused(kKind, options), first_(options, type) {}
  ~Quantized() override { options().release(factors_); }

  int prepare(const BNNSFilterType*, const void* const* blocks) override {
    BNNSLayerParametersQuantization block = *static_cast<const BNNSLayerParametersQuantization*>(blocks[1]);
    const BNNSNDArrayDescriptor* joint = First::output_of(blocks[0]);
    if (!joint || check_joint(*joint, "first", block.i_desc, "second") != 0) return -1;
    block.i_desc = packed(block.i_desc);
    if (first_.prepare(blocks[0]) != 0 || second_.read(block, options().threads) != 0) return -1;
    if (options().use_client_ptr) return 0;
    factors_ = static_cast<double*>(options().get(factor_bytes()));
    if (!factors_) return -1;
    second_.fill(factors_);
    return 0;
  }
  bool takes_many() const override { return false; }
  int apply_fused(const ForwardArguments& arguments) override;
  int apply_fused_backward(const BackwardArguments&) override {
    return fail("filter: expected a normalization at its end for gradients; a quantization has none");
  }
  int set_winograd(int on) override {
    return first_.convolution() ? first_.convolution()->set_winograd(on) : Fused::set_winograd(on);
  }
  int set_precision(int precision) override {
    return first_.fully_connected() ? first_.fully_connected()->set_precision(precision)
                                    : Fused::set_precision(precision);
  }
  size_t work_bytes(size_t batch) const override {
    if (batch == 0) return 0;
    const size_t first = first_.work_bytes(batch);
    if (first == SIZE_MAX) return SIZE_MAX;
    Workspace space;
    space.take_samples(first_.output(), first_.most_samples(batch));
    space.take(factors_ ? 0 : factor_bytes());
    space.take(first);
    return space.used();
  }
  void describe(Description* description) const override {
    first_.describe(description);
    description->kinds[1] = "quantization";
    description->input_gradient = "none";
    description->weight_gradient = nullptr;
    description->output = &second_.output();
  }

 private:
  size_t factor_bytes() const { return 2 * second_.length() * sizeof(double); }

  First first_;
  quantization::Plan second_;
  double* factors_ = nullptr;  // what scale and bias were; NULL: read in every call
};

// z is made of some samples at a time, and quantized while it is near.
template <class First>
int Quantized<First>::apply_fused(const ForwardArguments& a) {
  if (a.batch == 0) return 0;
  typename First::Forward f;
  if (first_.check(a, &f) != 0) return -1;
  const size_t chunk = first_.most_samples(a.batch);
  std::byte *factors, *work;
  const auto lay_out = [&](Workspace* space) {
    std::byte* z = space->take_samples(first_.output(), chunk);
    factors = space->take(factors_ ? 0 : factor_bytes());
    const size_t rest = a.batch % chunk;
    work = space->take(std::max(first_.bytes(f, chunk), rest ? first_.bytes(f, rest) : 0));
    return z;
  };
  Workspace counted;
  lay_out(&counted);
  std::byte* block;
  if (find_workspace(counted.used(), &block) != 0) return -1;
  Workspace space(block);
  std::byte* z = lay_out(&space);
  quantization::Call call;
  if (second_.check_output(a.batch, a.y, a.y_stride, &call) != 0 ||
      (!factors_ && second_.check_factors_apart(call) != 0) ||
      first_.check_apart(a, f, {"output", &second_.output(), a.y, call.y_step, a.batch}) != 0)
    return -1;
  double* values = factors_ ? factors_ : reinterpret_cast<double*>(factors);
  if (!factors_) second_.fill(values);
  const size_t step = call.y_step * bytes_of(second_.output().type);
  call.x = z;
  call.x_step = first_.output().count;
  for (size_t done = 0; done < a.batch; done += chunk) {
    call.batch = std::min(chunk, a.batch - done);
    call.y = static_cast<std::byte*>(a.y) + done * step;
    first_.run(f, done, call.batch, z, work);
    second_.run(call, values + (second_.is_along_batch() && second_.length() > 1 ? done : 0));
  }
  return 0;
}

// ---- creation ----

template <class Pair>
Fused* make(const BNNSFilterType* types, const void* const* blocks, const Options& options) {
  Pair* pair = options.make<Pair>(options, types[0]);
  if (!pair) return nullptr;
  if (pair->prepare(types, blocks) != 0) {
    destroy(pair);
    return nullptr;
  }
  return pair;
}

BNNSFilter create(size_t count, const BNNSFilterType* types, const void* const* blocks,
                  const BNNSFilterParameters* filter_params) {
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  if (count != 2 && count != 3) {
    fail("layers: expected two, or three with a pooling at the end; got %zu", count);
    return nullptr;
  }
  if (!types || !blocks || !blocks[0] || !blocks[1] || (count == 3 && !blocks[2])) {
    fail("layers: expected types and parameters of %s layers; got NULL", count == 2 ? "two" : "three");
    return nullptr;
  }
  Fused* filter;
  if (count == 2) {
    filter = make_pair(types, blocks, options);
  } else if (is_norm(types[1])) {
    filter = make_pooled(types, blocks, options);
  } else {
    fail("layers: expected a normalization (2 to 5) before a pooling; got %u", static_cast<unsigned>(types[1]));
    return nullptr;
  }
  return filter ? publish(filter) : nullptr;
}

Fused* find(BNNSFilter filter) { return static_cast<Fused*>(find_filter(filter, kKind)); }

int check_takes_many(const Fused& filter, const void* array, const char* argument) {
  if (!filter.takes_many())
    return fail("filter: expected arithmetic as its first layer for a call with several inputs; got another");
  return array ? 0 : fail("%s: expected an array; got NULL", argument);
}

}  // namespace

Fused* make_pair(const BNNSFilterType* types, const void* const* blocks, const Options& options) {
  const bool has_norm = is_norm(types[1]), has_quantization = types[1] == BNNSQuantization;
  switch (types[0]) {
    case BNNSConvolution:
    case BNNSTransposedConvolution:
      if (has_norm) return make<Normalized<ConvolutionFirst>>(types, blocks, options);
      if (has_quantization) return make<Quantized<ConvolutionFirst>>(types, blocks, options);
      break;
    case BNNSFullyConnected:
      if (has_norm) return make<Normalized<FullyConnectedFirst>>(types, blocks, options);
      if (has_quantization) return make<Quantized<FullyConnectedFirst>>(types, blocks, options);
      break;
    case BNNSArithmetic:
      if (has_norm) return make<Normalized<ArithmeticFirst>>(types, blocks, options);
      break;
    default: break;
  }
  fail("layers: expected a convolution (0, 6) or fully connected layer (1) before a normalization (2 to 5) or "
       "quantization (7), or arithmetic (8) before a normalization; got %u before %u",
       static_cast<unsigned>(types[0]), static_cast<unsigned>(types[1]));
  return nullptr;
}

}  // namespace obn::fused

// ---- the C interface ----

using obn::fused::Fused;

extern "C" {

BNNSFilter BNNSFilterCreateFusedLayer(size_t number_of_fused_filters, const BNNSFilterType* filter_type,
                                      const void** layer_params, const BNNSFilterParameters* filter_params) {
  return obn::fused::create(number_of_fused_filters, filter_type, layer_params, filter_params);
}

int BNNSFusedFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride, void* out,
                              size_t out_stride, bool training) {
  Fused* found = obn::fused::find(filter);
  if (!found) return -1;
  return obn::call_filter(found, obn::Pass::forward, batch_size, [&] {
    return found->apply_fused({batch_size, 1, &in, &in_stride, out, out_stride, training});
  });
}

int BNNSFusedFilterApplyMultiInputBatch(BNNSFilter filter, size_t batch_size, size_t number_of_inputs, const void** in,
                                        const size_t* in_stride, void* out, size_t out_stride, bool training) {
  Fused* found = obn::fused::find(filter);
  if (!found || obn::fused::check_takes_many(*found, in, "inputs") != 0) return -1;
  return obn::call_filter(found, obn::Pass::forward, batch_size, [&] {
    return found->apply_fused({batch_size, number_of_inputs, in, in_stride, out, out_stride, training});
  });
}

int BNNSFusedFilterApplyBackwardBatch(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride,
                                      BNNSNDArrayDescriptor* in_delta, size_t in_delta_stride, const void* out,
                                      size_t out_stride, BNNSNDArrayDescriptor* out_delta, size_t out_delta_stride,
                                      BNNSNDArrayDescriptor** delta_parameters) {
  Fused* found = obn::fused::find(filter);
  if (!found) return -1;
  return obn::call_filter(found, obn::Pass::backward, batch_size, [&] {
    return found->apply_fused_backward({batch_size, 1, in ? &in : nullptr, &in_stride, in_delta ? &in_delta : nullptr,
                                        &in_delta_stride, out, out_stride, out_delta, out_delta_stride,
                                        delta_parameters});
  });
}

int BNNSFusedFilterApplyBackwardMultiInputBatch(BNNSFilter filter, size_t batch_size, size_t number_of_inputs,
                                                const void** in, const size_t* in_stride,
                                                BNNSNDArrayDescriptor** in_delta, const size_t* in_delta_stride,
                                                const void* out, size_t out_stride, BNNSNDArrayDescriptor* out_delta,
                                                size_t out_delta_stride, BNNSNDArrayDescriptor** delta_parameters) {
  Fused* found = obn::fused::find(filter);
  if (!found || obn::fused::check_takes_many(*found, in_delta, "input_gradients") != 0) return -1;
  return obn::call_filter(found, obn::Pass::backward, batch_size, [&] {
    return found->apply_fused_backward({batch_size, number_of_inputs, in, in_stride, in_delta, in_delta_stride, out,
                                        out_stride, out_delta, out_delta_stride, delta_parameters});
  });
}
}
