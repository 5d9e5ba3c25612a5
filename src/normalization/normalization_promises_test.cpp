// Normalization, the promises of the C interface: the same bits in any way of working, memory, refusals.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/memory.h"
#include "normalization/normalization_test.h"

namespace obn::normalization {

using namespace test;

TEST(normalization_any_number_of_threads_gives_the_same_bits) {
  for (BNNSFilterType type : kTypes) {
    for (int variant = 0; variant < 5; ++variant) {
      Setup s;
      s.type = type;
      s.n = variant == 1 ? 1 : 9;
      s.c = 12;
      s.h = 31;
      s.w = 45;
      s.groups = 3;
      s.axis = static_cast<size_t>(variant) % 3;
      s.has_moving = true;
      s.function = BNNSActivationFunctionRectifiedLinear;
      if (variant == 2) s.x_type = BNNSDataTypeBFloat16;
      if (variant == 3) {
        s.is_vector = true;
        s.n = 200;
        s.c = 600;
        s.h = s.w = 1;
        s.axis = 0;
      }
      if (variant == 4) {  // results are streamed
        s.c = 24;
        s.h = 100;
        s.w = 99;
        s.groups = 8;
      }
      std::vector<Array> first;
      const size_t threads = obn_get_num_threads();
      for (size_t count : {1, 2, 7}) {
        obn_set_num_threads(count);
        Random random{51};
        Layer layer(s, random);
        CHECK(layer.apply() == 0 && layer.apply_backward() == 0, "%s", obn_last_error());
        const std::vector<Array> all = {layer.y, layer.dx, layer.dbeta, layer.dgamma, layer.moving_mean,
                                        layer.moving_variance};
        if (first.empty()) first = all;
        for (size_t k = 0; k < all.size(); ++k)
          CHECK(all[k].bytes == first[k].bytes, "%s: result %zu with %zu threads", s.text().c_str(), k, count);
      }
      obn_set_num_threads(threads);
    }
  }
}

// ---- for layers that have a normalization inside ----

namespace {

Tensor tensor_of(Array& a) {
  View view;
  CHECK(read_view(a.descriptor, Access::write, "array", &view) == 0, "%s", obn_last_error());
  return Tensor(view, a.data(), a.batch_stride);
}

ParameterGradient gradient_of(Array& a, bool accumulate) {
  View view;
  CHECK(read_view(a.descriptor, Access::write, "array", &view) == 0, "%s", obn_last_error());
  ParameterGradient gradient;
  gradient.is_wanted = true;
  gradient.accumulate = accumulate;
  gradient.count = view.count;
  gradient.walk = activation::walk_of(view, a.data(), 1, 0);
  return gradient;
}

// The layer's own calls, and the same with its input kept by the caller and all gradients at once: every result has the
// same bits.
void check_inside(const Setup& s, const Target& target, uint64_t seed) {
  Random random{seed}, same{seed};
  Layer whole(s, random), inside(s, same);
  if (!whole.filter || !inside.filter) return;
  const std::string on = s.text() + " on " + target.name;
  whole.use(target.kernels);
  CHECK(whole.apply() == 0 && whole.apply_backward(false, true, true) == 0, "%s: %s", on.c_str(), obn_last_error());
  whole.s.accumulate = false;
  CHECK(whole.apply_backward(true, false, false) == 0, "%s: %s", on.c_str(), obn_last_error());

  Plan plan = static_cast<Normalization*>(find_filter(inside.filter))->plan;
  plan.kernels = target.kernels;
  const Tensor x = tensor_of(inside.x), y = tensor_of(inside.y), dy = tensor_of(inside.dy), none;
  const bool is_identity = plan.activation.is_identity();
  const Array input = inside.x;
  State state(find_filter(inside.filter)->options());
  CHECK(state.reserve(plan, s.n, false) == 0, "%s", obn_last_error());
  CHECK(state.block.bytes() == State::bytes_for(plan, s.n, false), "%zu bytes", state.block.bytes());
  std::byte* work = workspace(forward_bytes(plan, s.n, x, y, true));
  forward(plan, &state, s.n, x, y, work);
  CHECK(inside.y.bytes == whole.y.bytes, "output of %s", on.c_str());
  CHECK(inside.x.bytes == input.bytes, "input of %s", on.c_str());
  CHECK(inside.moving_mean.bytes == whole.moving_mean.bytes, "running mean of %s", on.c_str());
  CHECK(inside.moving_variance.bytes == whole.moving_variance.bytes, "running variance of %s", on.c_str());

  const ParameterGradient dbeta = gradient_of(inside.dbeta, s.accumulate);
  const ParameterGradient dgamma = gradient_of(inside.dgamma, s.accumulate);
  Array u = inside.dx;
  const Tensor read_y = is_identity ? none : y;
  const Tensor all_u = tensor_of(u);
  work = workspace(backward_bytes(plan, s.n, dy, read_y, all_u, dbeta, dgamma));
  backward(plan, state, dy, read_y, all_u, false, dbeta, dgamma, work);
  CHECK(u.bytes == whole.dx.bytes, "input gradient of %s", on.c_str());
  CHECK(inside.dbeta.bytes == whole.dbeta.bytes, "beta gradient of %s", on.c_str());
  CHECK(inside.dgamma.bytes == whole.dgamma.bytes, "gamma gradient of %s", on.c_str());
}

}  // namespace

TEST(normalization_inside_another_layer_gives_the_bits_of_the_layer) {
  Random random{63};
  constexpr BNNSActivationFunction kFunctions[] = {
      BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionRectifiedLinear,
      BNNSActivationFunctionTanh};
  for (int round = 0; round < 300; ++round) {
    Setup s;
    s.type = kTypes[random.below(4)];
    s.is_vector = random.below(4) == 0;
    s.n = random.below(8) == 0 ? random.between(60, 140) : random.between(1, 9);
    s.groups = random.between(1, 3);
    s.c = s.groups * random.between(1, 7);
    s.h = s.is_vector ? 1 : random.between(1, 12);
    s.w = s.is_vector ? 1 : random.between(1, 24);
    s.axis = random.below(3);
    for (size_t(*gaps)[4] : {&s.y_gaps, &s.dy_gaps})
      for (size_t& gap : *gaps) gap = random.below(4) == 0 ? random.below(3) : 0;
    if (random.below(4) == 0) s.y_type = kFloats[random.below(3)];
    if (random.below(4) == 0) s.dy_type = kFloats[random.below(3)];
    s.has_gamma = random.below(4) > 0;
    s.has_beta = random.below(4) > 0;
    s.gamma_is_whole = random.coin();
    s.beta_is_whole = random.coin();
    s.client = random.coin();
    s.parameter_gap = random.below(2);
    s.accumulate = random.coin();
    s.has_moving = random.coin();
    s.shift = random.below(3);
    s.function = kFunctions[random.below(std::size(kFunctions))];
    s.mean = random.below(3) == 0 ? 3.0 : 0.0;
    for (const Target& target : all_targets()) check_inside(s, target, 500 + static_cast<uint64_t>(round));
  }
  // long runs, more than one thread
  for (BNNSFilterType type : kTypes) {
    Setup s;
    s.type = type;
    s.n = 5;
    s.c = 6;
    s.h = 80;
    s.w = 77;
    s.groups = 2;
    s.function = BNNSActivationFunctionRectifiedLinear;
    for (const Target& target : all_targets()) check_inside(s, target, 900);
  }
}

// The gradient of ReLU is where γ·x̂ + β of the forward call was positive, whatever became of γ and of y since.
TEST(normalization_relu_remembers_where_it_was_open) {
  for (BNNSFilterType type : {BNNSBatchNorm, BNNSInstanceNorm, BNNSGroupNorm}) {
    for (bool is_vector : {false, true}) {
      if (is_vector && type == BNNSGroupNorm) continue;  // rows: the output is read
      Setup s;
      s.type = type;
      s.is_vector = is_vector;
      s.n = 7;
      s.c = 18;
      s.groups = 3;
      s.h = is_vector ? 1 : 3;
      s.w = is_vector ? 1 : 7;
      s.client = true;
      s.function = BNNSActivationFunctionRectifiedLinear;
      Random random{64}, same{64};
      Layer layer(s, random), other(s, same);
      CHECK(layer.apply() == 0 && other.apply() == 0, "%s", obn_last_error());
      other.beta.fill(random, 5.0);
      other.y.fill(random);
      CHECK(layer.apply_backward() == 0 && other.apply_backward() == 0, "%s", obn_last_error());
      CHECK(layer.dx.bytes == other.dx.bytes && layer.dbeta.bytes == other.dbeta.bytes &&
                layer.dgamma.bytes == other.dgamma.bytes, "%s", s.text().c_str());
    }
  }
}

TEST(normalization_gradients_are_had_one_by_one_and_again) {
  for (BNNSFilterType type : kTypes) {
    for (bool is_vector : {false, true}) {
      Setup s;
      s.type = type;
      s.is_vector = is_vector;
      s.n = 5;
      s.c = 6;
      s.groups = 2;
      s.h = s.w = is_vector ? 1 : 6;
      s.axis = is_vector ? 0 : 1;
      s.function = BNNSActivationFunctionRectifiedLinear;
      Random random{53}, same{53};
      Layer all(s, random), parts(s, same);
      CHECK(all.apply() == 0 && parts.apply() == 0 && all.apply_backward() == 0, "%s", obn_last_error());
      CHECK(parts.apply_backward(true, false, false) == 0 && parts.apply_backward(false, true, false) == 0 &&
                parts.apply_backward(false, false, true) == 0 && parts.apply_backward(false, false, false) == 0,
            "%s", obn_last_error());
      CHECK(all.dx.bytes == parts.dx.bytes && all.dbeta.bytes == parts.dbeta.bytes &&
                all.dgamma.bytes == parts.dgamma.bytes, "%s", s.text().c_str());
      CHECK(parts.apply_backward() == 0 && all.dx.bytes == parts.dx.bytes, "%s again", s.text().c_str());
    }
  }
}

TEST(normalization_input_gradient_may_take_the_place_of_grad_output) {
  for (BNNSFilterType type : kTypes) {
    for (BNNSDataType data_type : kFloats) {
      Setup s;
      s.type = type;
      s.c = 4;
      s.h = 5;
      s.w = 6;
      s.dy_type = s.dx_type = data_type;
      Random random{54};
      Layer layer(s, random);
      CHECK(layer.apply() == 0 && layer.apply_backward() == 0, "%s", obn_last_error());
      BNNSNDArrayDescriptor dy = layer.dy.with_data();
      CHECK(BNNSNormalizationFilterApplyBackwardBatch(layer.filter, s.n, &dy, 0, nullptr, 0, &dy, 0, nullptr,
                                                      nullptr) == 0, "%s", obn_last_error());
      for (size_t i = 0; i < layer.dx.count(); ++i)
        CHECK(layer.dy.get(i) == layer.dx.get(i), "type %u at %zu: %g, not %g", type, i, layer.dy.get(i),
              layer.dx.get(i));
    }
  }
}

TEST(normalization_memory_comes_from_the_caller_and_goes_back) {
  using ::obn::test::Memory;
  Setup s;
  s.n = 4;
  Random random{9};
  Layer layer(s, random);
  const BNNSFilterParameters options = Memory::start();
  BNNSLayerParametersNormalization p = layer.parameters();
  BNNSFilter filter = BNNSFilterCreateLayerNormalization(s.type, &p, &options);
  CHECK(filter && Memory::taken == 3, "%zu blocks", Memory::taken);
  std::swap(filter, layer.filter);
  CHECK(layer.apply(false) == 0 && Memory::taken == 3, "inference took memory");
  CHECK(layer.apply() == 0 && Memory::taken == 4, "the state is one block");
  CHECK(layer.apply() == 0 && layer.apply_backward() == 0 && Memory::taken == 4, "a warm call took memory");
  layer.s.n = 2;
  CHECK(layer.apply() == 0 && layer.apply_backward() == 0 && Memory::taken == 4, "a smaller batch took memory");
  std::swap(filter, layer.filter);
  BNNSFilterDestroy(filter);
  CHECK(Memory::returned == 4, "%zu released", Memory::returned);
  p.beta_desc.size[0] = 19;
  CHECK(!BNNSFilterCreateLayerNormalization(s.type, &p, &options) && Memory::taken == Memory::returned,
        "failed creation keeps memory");
}

// ---- a borrowed input ----

namespace {

Normalization* normalization_of(const Layer& layer) { return static_cast<Normalization*>(find_filter(layer.filter)); }

// A layer that borrows its input gives the bits of one that copies it, and keeps as much less as it says.
void check_borrowing(const Setup& s, const test::Target& target, uint64_t seed) {
  Random random{seed}, same{seed};
  Layer copies(s, random), borrows(s, same);
  if (!copies.filter || !borrows.filter) return;
  const std::string on = s.text() + " on " + target.name;
  for (Layer* layer : {&copies, &borrows}) layer->use(target.kernels);
  CHECK(obn_filter_set_borrow_input(borrows.filter, 1) == 0, "%s: %s", on.c_str(), obn_last_error());
  for (Layer* layer : {&copies, &borrows})
    CHECK(layer->apply() == 0 && layer->apply_backward() == 0, "%s: %s", on.c_str(), obn_last_error());
  CHECK(borrows.x.bytes == copies.x.bytes, "%s: the input was touched", on.c_str());
  const Array* results[][2] = {{&copies.y, &borrows.y}, {&copies.dx, &borrows.dx}, {&copies.dbeta, &borrows.dbeta},
                               {&copies.dgamma, &borrows.dgamma}, {&copies.moving_mean, &borrows.moving_mean}};
  for (const auto& [expected, got] : results)
    CHECK(got->bytes == expected->bytes, "%s: result %td", on.c_str(), &expected - &results[0][0]);
  const bool stays = s.x_type == BNNSDataTypeFloat32 && std::count(s.x_gaps, s.x_gaps + 3, size_t{0}) == 3;
  const State& state = normalization_of(borrows)->state;
  CHECK((state.x == static_cast<float*>(borrows.x.data())) == stays, "%s: borrowed, or not", on.c_str());
  const size_t bytes = obn_filter_kept_bytes(borrows.filter, s.n), before = obn_filter_kept_bytes(copies.filter, s.n);
  CHECK(bytes == state.block.bytes() && (stays ? bytes + s.n * s.sample() * sizeof(float) <= before : bytes == before),
        "%s: %zu bytes, not %zu; %zu with a copy", on.c_str(), state.block.bytes(), bytes, before);
}

}  // namespace

TEST(normalization_borrows_its_input_without_another_bit) {
  Random random{71};
  for (const test::Target& target : all_targets()) {
    for (int round = 0; round < 120; ++round) {
      Setup s;
      s.type = kTypes[random.below(4)];
      s.is_vector = random.below(4) == 0;
      s.n = random.between(1, 6);
      s.groups = random.between(1, 3);
      s.c = s.groups * random.between(2, 5);
      s.h = s.is_vector ? 1 : random.between(2, 9);
      s.w = s.is_vector ? 1 : random.between(2, 60);
      s.axis = s.is_vector ? 0 : random.below(3);
      s.x_gaps[3] = random.below(3);  // between samples
      if (random.below(5) == 0 && !s.is_vector) s.x_gaps[random.below(3)] = 1;
      if (random.below(6) == 0) s.x_type = kFloats[1 + random.below(2)];
      s.shift = random.below(3);
      s.gamma_is_whole = random.coin();
      s.beta_is_whole = random.coin();
      s.has_moving = random.coin();
      s.accumulate = random.coin();
      s.function = random.coin() ? BNNSActivationFunctionRectifiedLinear : BNNSActivationFunctionIdentity;
      check_borrowing(s, target, 2000 + static_cast<uint64_t>(round));
    }
    Setup s;  // results are streamed
    s.n = 9;
    s.c = 24;
    s.h = 100;
    s.w = 99;
    s.groups = 8;
    s.function = BNNSActivationFunctionRectifiedLinear;
    for (BNNSFilterType type : kTypes) {
      s.type = type;
      check_borrowing(s, target, 72);
    }
  }
}

TEST(normalization_borrowing_is_refused_where_it_cannot_be) {
  Setup s;
  s.n = 3;
  s.c = 4;
  s.h = s.w = 5;
  Random random{73}, same{73};
  Layer layer(s, random);
  const Layer before(s, same);
  const auto refused = [&](int status, const char* word) {
    CHECK(status == -1 && failed_with(word), "%s: %s", word, obn_last_error());
    CHECK(layer.x.bytes == before.x.bytes && layer.dbeta.bytes == before.dbeta.bytes, "%s: touched", word);
  };
  refused(obn_filter_set_borrow_input(nullptr, 1), "filter");
  refused(obn_filter_set_borrow_input(layer.filter, 2), "on");
  BNNSLayerParametersActivation other = {};
  other.i_desc = other.o_desc = layer.x.descriptor;
  other.activation.function = BNNSActivationFunctionRectifiedLinear;
  BNNSFilter activation = BNNSFilterCreateLayerActivation(&other, nullptr);
  CHECK(activation, "%s", obn_last_error());
  refused(obn_filter_set_borrow_input(activation, 1), "filter");
  BNNSFilterDestroy(activation);

  CHECK(obn_filter_set_borrow_input(layer.filter, 1) == 0, "%s", obn_last_error());
  CHECK(obn_filter_set_borrow_input(layer.filter, 0) == 0 && obn_filter_set_borrow_input(layer.filter, 1) == 0,
        "changed before the first training call: %s", obn_last_error());
  const auto in_place = [&](bool training) {
    return BNNSNormalizationFilterApplyBatch(layer.filter, s.n, layer.x.data(), 0, layer.x.data(), 0, training);
  };
  refused(in_place(true), "output");
  CHECK(layer.apply() == 0, "%s", obn_last_error());
  refused(obn_filter_set_borrow_input(layer.filter, 0), "filter");
  CHECK(obn_filter_set_borrow_input(layer.filter, 1) == 0, "nothing changes: %s", obn_last_error());
  BNNSNDArrayDescriptor dx = layer.dx.with_data(), dy = layer.dy.with_data(), sum = layer.dbeta.with_data();
  dx.data = layer.x.data();
  sum.data = layer.x.data();
  refused(BNNSNormalizationFilterApplyBackwardBatch(layer.filter, s.n, &dx, 0, nullptr, 0, &dy, 0, nullptr, nullptr),
          "input_gradient");
  refused(BNNSNormalizationFilterApplyBackwardBatch(layer.filter, s.n, nullptr, 0, nullptr, 0, &dy, 0, &sum, nullptr),
          "beta_gradient");
  CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
  CHECK(in_place(false) == 0, "inference keeps nothing and may work in place: %s", obn_last_error());
}

TEST(normalization_borrowing_takes_no_memory_when_warm) {
  using ::obn::test::Memory;
  Setup s;
  s.n = 4;
  s.h = s.w = 9;
  Random random{74};
  Layer layer(s, random);
  const BNNSFilterParameters options = Memory::start();
  BNNSLayerParametersNormalization p = layer.parameters();
  BNNSFilter filter = BNNSFilterCreateLayerNormalization(s.type, &p, &options);
  CHECK(filter && obn_filter_set_borrow_input(filter, 1) == 0, "%s", obn_last_error());
  std::swap(filter, layer.filter);
  CHECK(layer.apply() == 0 && layer.apply_backward() == 0, "%s", obn_last_error());
  const size_t before = Memory::taken;
  CHECK(layer.apply() == 0 && layer.apply_backward() == 0 && Memory::taken == before, "%zu blocks",
        Memory::taken - before);
  std::swap(filter, layer.filter);
  BNNSFilterDestroy(filter);
}

TEST(normalization_parameters_are_copied_unless_the_client_keeps_them) {
  for (BNNSFilterType type : kTypes) {
    for (bool client : {false, true}) {
      Setup s;
      s.type = type;
      s.client = client;
      Random random{11}, same{11};
      Layer layer(s, random), before(s, same);
      layer.gamma.fill(random);
      layer.beta.fill(random);
      CHECK(layer.apply() == 0, "%s", obn_last_error());
      const Expected<double> e(client ? layer : before);
      for (size_t i = 0; i < e.y.size(); ++i)
        CHECK(std::fabs(layer.y.get(i) - e.y[i]) <= 1e-5, "type %u at %zu: %g, not %g", type, i, layer.y.get(i),
              e.y[i]);
    }
  }
}

TEST(normalization_refuses_what_cannot_be) {
  Setup s;
  s.c = 6;
  s.has_moving = true;
  Random random{12};
  Layer layer(s, random);
  const auto refuses = [&](const char* word, BNNSFilterType type, auto change) {
    BNNSLayerParametersNormalization p = layer.parameters();
    change(p);
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(type, &p, nullptr);
    CHECK(!filter && failed_with(word), "%s: %s", word, obn_last_error());
    BNNSFilterDestroy(filter);
  };
  using P = BNNSLayerParametersNormalization;
  CHECK(!BNNSFilterCreateLayerNormalization(BNNSBatchNorm, nullptr, nullptr), "no parameters");
  refuses("type", static_cast<BNNSFilterType>(0), [](P&) {});
  refuses("type", static_cast<BNNSFilterType>(6), [](P&) {});
  refuses("momentum", BNNSBatchNorm, [](P& p) { p.momentum = 1.5f; });
  refuses("momentum", BNNSLayerNorm, [](P& p) { p.momentum = -0.5f; });
  refuses("momentum", BNNSBatchNorm, [](P& p) { p.momentum = NAN; });
  refuses("epsilon", BNNSBatchNorm, [](P& p) { p.epsilon = -1.0f; });
  refuses("epsilon", BNNSBatchNorm, [](P& p) { p.epsilon = NAN; });
  refuses("num_groups", BNNSGroupNorm, [](P& p) { p.num_groups = 4; });
  refuses("axis", BNNSLayerNorm, [](P& p) { p.normalization_axis = 3; });
  refuses("activation", BNNSBatchNorm, [](P& p) { p.activation.function = BNNSActivationFunctionSoftmax; });
  refuses("activation", BNNSBatchNorm, [](P& p) { p.activation.function = BNNSActivationFunctionLogSoftmax; });
  refuses("input", BNNSBatchNorm, [](P& p) { p.i_desc.data_type = BNNSDataTypeInt8; });
  refuses("input", BNNSBatchNorm, [](P& p) { p.i_desc.layout = BNNSDataLayout3DLastMajor; });
  refuses("output", BNNSBatchNorm, [](P& p) { p.o_desc.size[0] += 1; });
  refuses("gamma", BNNSBatchNorm, [](P& p) { p.gamma_desc.size[0] = 5; });
  refuses("beta", BNNSLayerNorm, [](P& p) { p.gamma_desc.data = nullptr, p.beta_desc.size[0] = 5; });
  refuses("moving_mean", BNNSBatchNorm, [](P& p) { p.moving_mean_desc.data_type = BNNSDataTypeFloat16; });
  refuses("moving_variance", BNNSInstanceNorm, [](P& p) { p.moving_variance_desc.size[0] = 7; });
  // Descriptors without data, and running statistics of the other kinds, are not looked at.
  for (BNNSFilterType type : {BNNSGroupNorm, BNNSLayerNorm}) {
    P p = layer.parameters();
    p.moving_mean_desc.size[0] = 77;
    p.beta_desc = p.gamma_desc = BNNSNDArrayDescriptor{};
    p.beta_desc.layout = static_cast<BNNSDataLayout>(0x1234);
    p.num_groups = 0;
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(type, &p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    BNNSFilterDestroy(filter);
  }
}

TEST(normalization_failing_calls_leave_outputs_alone) {
  Setup s;
  s.n = 3;
  s.c = 4;
  s.h = s.w = 3;
  s.has_moving = true;
  s.client = true;
  s.function = BNNSActivationFunctionRectifiedLinear;
  Random random{13}, same{13};
  Layer layer(s, random);
  const Layer before(s, same);
  const auto untouched = [&](const char* what) {
    CHECK(std::strlen(obn_last_error()) > 0, "%s: no sentence", what);
    CHECK(layer.y.bytes == before.y.bytes && layer.dx.bytes == before.dx.bytes &&
              layer.dgamma.bytes == before.dgamma.bytes && layer.dbeta.bytes == before.dbeta.bytes &&
              layer.moving_mean.bytes == before.moving_mean.bytes, "%s: something was touched", what);
  };
  BNNSFilter filter = layer.filter;
  CHECK(BNNSFilterApply(filter, layer.x.data(), layer.y.data()) == -1, "generic apply");
  untouched("generic apply");
  CHECK(BNNSFilterApplyBatch(filter, s.n, layer.x.data(), 0, layer.y.data(), 0) == -1, "generic batch apply");
  CHECK(BNNSNormalizationFilterApplyBatch(nullptr, 1, layer.x.data(), 0, layer.y.data(), 0, true) == -1, "no filter");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, s.n, nullptr, 0, layer.y.data(), 0, true) == -1, "no input");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, s.n, layer.x.data(), 0, nullptr, 0, true) == -1, "no output");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, s.n, layer.x.data(), 0, layer.y.data(), 3, true) == -1, "overlap");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, 2, layer.y.data(), 0, static_cast<float*>(layer.y.data()) + 1, 0,
                                          true) == -1, "partly in place");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, 1, layer.x.data(), 0, layer.moving_mean.data(), 0, true) == -1,
        "over the running mean");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0, true) == 0, "an empty batch");
  untouched("forward");
  CHECK(layer.apply_backward() == -1, "gradients before training");
  untouched("gradients before training");
  CHECK(layer.apply(false) == 0 && layer.apply_backward() == -1, "gradients after inference");
  CHECK(layer.apply(true) == 0, "%s", obn_last_error());
  layer.y.bytes = before.y.bytes;
  layer.moving_mean.bytes = before.moving_mean.bytes;
  layer.s.n = 2;
  CHECK(layer.apply_backward() == -1, "another batch size");
  untouched("another batch size");
  layer.s.n = 3;
  BNNSNDArrayDescriptor dx = layer.dx.with_data(), dy = layer.dy.with_data(), db = layer.dbeta.with_data();
  const auto backward = [&](BNNSNDArrayDescriptor* dx_d, const void* y, BNNSNDArrayDescriptor* dy_d,
                            BNNSNDArrayDescriptor* db_d, BNNSNDArrayDescriptor* dg_d) {
    return BNNSNormalizationFilterApplyBackwardBatch(filter, 3, dx_d, 0, y, 0, dy_d, 0, db_d, dg_d);
  };
  CHECK(backward(&dx, layer.y.data(), nullptr, nullptr, nullptr) == -1, "no grad_output");
  CHECK(backward(&dx, nullptr, &dy, nullptr, nullptr) == -1, "no output");
  CHECK(backward(&dx, layer.y.data(), &dy, &db, &db) == -1, "beta over gamma");
  BNNSNDArrayDescriptor wrong = dx;
  wrong.size[0] = 2;
  CHECK(backward(&wrong, layer.y.data(), &dy, &db, nullptr) == -1, "a wrong shape");
  wrong = db;
  wrong.size[0] = 3;
  CHECK(backward(&dx, layer.y.data(), &dy, &wrong, nullptr) == -1, "a wrong beta shape");
  wrong = db;
  wrong.data = layer.dx.data();
  CHECK(backward(&dx, layer.y.data(), &dy, &wrong, nullptr) == -1, "beta over the input gradient");
  wrong.data = layer.gamma.data();
  CHECK(backward(&dx, layer.y.data(), &dy, &wrong, nullptr) == -1, "beta gradient over gamma");
  wrong = dx;
  wrong.data = nullptr;
  CHECK(backward(&wrong, layer.y.data(), &dy, &db, nullptr) == -1, "no data");
  untouched("backward");
}

TEST(normalization_tells_its_memory) {
  Setup s;
  Random random{15};
  Layer layer(s, random);
  CHECK(obn_filter_work_bytes(layer.filter, 0) == 0, "an empty batch");
  CHECK(obn_filter_work_bytes(layer.filter, 4) <= 4096, "%zu", obn_filter_work_bytes(layer.filter, 4));
  s.type = BNNSInstanceNorm;
  Layer other(s, random);
  CHECK(obn_filter_work_bytes(other.filter, SIZE_MAX / 16) == SIZE_MAX, "a batch that overflows");
}

TEST(normalization_random_parameter_blocks_never_crash) {
  constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutVector, BNNSDataLayout1DFirstMajor, BNNSDataLayoutImageCHW,
                                         BNNSDataLayoutRowMajorMatrix, BNNSDataLayout3DFirstMajor,
                                         static_cast<BNNSDataLayout>(0x12345)};
  constexpr BNNSDataType kAllTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16,
                                        BNNSDataTypeInt8, BNNSDataTypeIndexed4, BNNSDataTypeUInt1,
                                        static_cast<BNNSDataType>(0x10000)};
  std::vector<float> memory(1 << 12, 0.5f), mean(1 << 12), variance(1 << 12, 1.0f), x(1 << 14, 0.25f), y(1 << 14),
      dx(1 << 14), dbeta(1 << 12), dgamma(1 << 12);
  Random random{14};
  size_t made = 0, refused = 0;
  for (int round = 0; round < 8000; ++round) {
    Setup s;
    s.is_vector = random.below(3) == 0;
    s.c = random.between(1, 6);
    s.h = s.is_vector ? 1 : random.between(1, 4);
    s.w = s.is_vector ? 1 : random.between(1, 4);
    const Array shape(BNNSDataTypeFloat32, s.is_vector, 1, s.c, s.h, s.w, {});
    BNNSLayerParametersNormalization p = {};
    p.i_desc = p.o_desc = shape.descriptor;
    const BNNSFilterType type = static_cast<BNNSFilterType>(random.between(1, 6));
    const BNNSNDArrayDescriptor values = Array::of_values(BNNSDataTypeFloat32, type == BNNSLayerNorm ? s.sample() : s.c)
                                             .descriptor;
    p.beta_desc = p.gamma_desc = p.moving_mean_desc = p.moving_variance_desc = values;
    p.beta_desc.data = memory.data();
    p.gamma_desc.data = memory.data() + 1000;
    if (random.coin()) p.moving_mean_desc.data = mean.data();
    if (random.coin()) p.moving_variance_desc.data = variance.data();
    p.num_groups = random.below(4);
    p.normalization_axis = random.below(4);
    p.epsilon = random.below(8) == 0 ? -1.0f : 1e-5f;
    p.momentum = random.below(8) == 0 ? 2.0f : 0.5f;
    BNNSNDArrayDescriptor* descriptors[] = {&p.i_desc, &p.o_desc, &p.beta_desc, &p.gamma_desc, &p.moving_mean_desc,
                                            &p.moving_variance_desc};
    const size_t changes = random.below(3);
    for (size_t k = 0; k < changes; ++k) {
      BNNSNDArrayDescriptor& d = *descriptors[random.below(6)];
      constexpr size_t kHuge[] = {0, SIZE_MAX, SIZE_MAX / 2 + 1, size_t{1} << 40};
      switch (random.below(6)) {
        case 0: d.layout = kLayouts[random.below(6)]; break;
        case 1: d.data_type = kAllTypes[random.below(7)]; break;
        case 2: d.size[random.below(3)] = random.below(6); break;
        case 3: d.stride[random.below(3)] = random.below(7); break;
        case 4: d.size[0] = kHuge[random.below(4)]; break;
        default: d.data = random.coin() ? nullptr : reinterpret_cast<char*>(memory.data()) + random.below(4);
      }
    }
    p.activation.function = static_cast<BNNSActivationFunction>(random.below(38));
    BNNSFilterParameters options = {};
    if (random.coin()) options.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(type, &p, &options);
    if (!filter) {
      ++refused;
      continue;
    }
    ++made;
    const size_t n = random.between(1, 3);
    BNNSNormalizationFilterApplyBatch(filter, n, x.data(), random.below(200), y.data(), random.below(200),
                                      random.below(4) > 0);
    BNNSNDArrayDescriptor dx_d = p.i_desc, dy_d = p.o_desc, db_d = p.beta_desc, dg_d = p.gamma_desc;
    dx_d.data = dx.data();
    dy_d.data = x.data();
    db_d.data = dbeta.data();
    dg_d.data = dgamma.data();
    BNNSNormalizationFilterApplyBackwardBatch(filter, n, &dx_d, random.below(200), y.data(), random.below(200), &dy_d,
                                              random.below(200), &db_d, &dg_d);
    BNNSFilterDestroy(filter);
  }
  CHECK(made > 500 && refused > 1000, "%zu made, %zu refused", made, refused);
}

}  // namespace obn::normalization
