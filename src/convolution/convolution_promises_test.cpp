// Convolution, the promises of the C interface: the same bits in any way of working, memory, refusals; and the first
// interface.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>

#include "base/memory.h"
#include "convolution/convolution_test.h"
#include "openbnns/bnns/legacy.h"

namespace obn::convolution {

using namespace layer_test;

TEST(convolution_any_number_of_threads_gives_the_same_bits) {
  Random random{6};
  const size_t threads_before = obn_get_num_threads();
  obn_set_num_threads(7);
  for (int round = 0; round < 60; ++round) {
    Layer l = random_layer(random);
    l.n = random.between(1, 20);
    if (random.one_in(2)) l.in *= 8, l.out *= 8;
    const Inputs in = make_inputs(l, random);
    l.threads = 1;
    const Results one = run(l, in);
    for (size_t threads : {2, 7}) {
      l.threads = threads;
      const Results many = run(l, in);
      CHECK(one.y.bytes == many.y.bytes, "output with %zu threads", threads);
      CHECK(one.dx.bytes == many.dx.bytes, "input_gradient with %zu threads", threads);
      CHECK(one.dw.bytes == many.dw.bytes, "weights_gradient with %zu threads", threads);
      CHECK(one.db.bytes == many.db.bytes, "bias_gradient with %zu threads", threads);
    }
  }
  obn_set_num_threads(threads_before);
}

TEST(convolution_gradients_are_the_same_alone_and_together) {
  Random random{7};
  for (int round = 0; round < 100; ++round) {
    const Layer l = random_layer(random);
    Inputs in = make_inputs(l, random);
    const Results all = run(l, in);
    BNNSFilter filter = l.create(in.w, in.bias);
    Image y = all.y;
    const auto flags = l.accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
    for (unsigned wanted = 0; wanted < 8; ++wanted) {
      Results got{y, in.dx, in.dw, in.db};
      got.dx.descriptor.flags = got.dw.descriptor.flags = got.db.descriptor.flags = flags;
      const bool dx = wanted & 1, dw = wanted & 2, db = wanted & 4;
      const int status = BNNSFilterApplyBackwardBatch(
          filter, l.n, dw ? in.x.data() : nullptr, in.x.batch_stride, dx ? &got.dx.descriptor : nullptr,
          in.dx.batch_stride, l.activation == BNNSActivationFunctionIdentity ? nullptr : y.data(), y.batch_stride,
          &in.dy.descriptor, in.dy.batch_stride, dw ? &got.dw.descriptor : nullptr, db ? &got.db.descriptor : nullptr);
      CHECK(status == 0, "%s", obn_last_error());
      CHECK(got.dx.bytes == (dx ? all.dx : in.dx).bytes, "input_gradient, wanted %u", wanted);
      CHECK(got.dw.bytes == (dw ? all.dw : in.dw).bytes, "weights_gradient, wanted %u", wanted);
      CHECK(got.db.bytes == (db ? all.db : in.db).bytes, "bias_gradient, wanted %u", wanted);
    }
    BNNSFilterDestroy(filter);
  }
}

TEST(convolution_reads_the_callers_weights_when_told_to) {
  for (BNNSDataLayout layout : kLayouts)
    for (bool use_client_ptr : {false, true}) {
      Layer l;
      l.layout = layout;
      l.use_client_ptr = use_client_ptr;
      Weights w = l.weights();
      Vector bias(1);
      w.set(0, 2.0f);
      bias.set(0, 1.0f);
      BNNSFilter filter = l.create(w, bias);
      w.set(0, 3.0f);
      bias.set(0, 10.0f);
      float x = 5.0f, y = 0.0f;
      CHECK(BNNSFilterApply(filter, &x, &y) == 0, "%s", obn_last_error());
      CHECK(y == (use_client_ptr ? 25.0f : 11.0f), "%g in layout %s", y, name_of(layout));
      BNNSFilterDestroy(filter);
    }
}

TEST(convolution_samples_may_be_slices_of_a_larger_array) {
  // Input and output interleaved in one array: batch strides keep them apart.
  Layer l;
  l.h = l.w = 2;
  l.set_outputs();
  Weights w = l.weights();
  w.set(0, 2.0f);
  l.has_bias = false;
  BNNSFilter filter = l.create(w, Vector());
  float both[3][8];
  for (auto& sample : both)
    for (int i = 0; i < 8; ++i) sample[i] = static_cast<float>(i);
  CHECK(BNNSFilterApplyBatch(filter, 3, both[0], 8, both[0] + 4, 8) == 0, "%s", obn_last_error());
  for (auto& sample : both)
    for (int i = 0; i < 4; ++i) CHECK(sample[i + 4] == 2.0f * sample[i], "%g", sample[i + 4]);
  CHECK(BNNSFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0) == 0, "no samples are no failure");
  BNNSFilterDestroy(filter);
}

TEST(convolution_gives_back_what_it_took) {
  using ::obn::test::Memory;
  Layer l;
  const Weights w = l.weights();
  Vector bias(1);
  const auto parameters = l.parameters(w, bias);
  size_t granted = 0;
  for (BNNSFilter filter = nullptr; !filter && granted < 10; ++granted) {
    const BNNSFilterParameters options = Memory::start(granted);
    filter = BNNSFilterCreateLayerConvolution(&parameters, &options);
    if (filter) BNNSFilterDestroy(filter);
    CHECK(!filter || granted > 0, "nothing was asked for");
    CHECK(Memory::taken == Memory::returned, "%zu blocks taken, %zu given back", Memory::taken, Memory::returned);
  }
  CHECK(granted < 10, "never enough");
}

TEST(convolution_says_what_it_holds) {
  Random random{8};
  for (int round = 0; round < 300; ++round) {
    Layer l = random_layer(random);
    l.n = random.between(1, 40);
    const Inputs in = make_inputs(l, random);
    BNNSFilter filter = l.create(in.w, in.bias);
    const size_t bytes = obn_filter_work_bytes(filter, l.n);
    auto* convolution = static_cast<Convolution*>(find_filter(filter));
    // Without what algorithms pack: two forms of the weights, sums, and copies within the larger of input and output.
    const Choice& choice = convolution->choice();
    Problem problem = convolution->problem();
    problem.batch = l.n;
    const size_t algorithm = std::max({choice.forward->work_bytes(problem), choice.input_gradient->work_bytes(problem),
                                       choice.weight_gradient->work_bytes(problem)});
    const size_t larger = std::max(in.x.count() * bytes_of(l.x_type), in.dy.count() * bytes_of(l.y_type));
    const size_t one_sample = 4 * (in.x.count() + in.dy.count()) / l.n;
    const size_t parameters = 2 * 4 * in.w.count() + (kSumGroups + 2) * 8 * l.out;
    CHECK(bytes <= algorithm + std::max(larger, one_sample) + parameters + 10 * kAlignment,
          "%zu bytes for arrays of %zu", bytes, larger);
    BNNSFilterDestroy(filter);
  }
}

TEST(convolution_winograd_has_a_switch) {
  Layer l;
  l.n = 2;
  l.in = l.out = 32;
  l.h = l.w = 20;
  l.kh = l.kw = 3;
  l.left = l.right = l.up = l.down = 1;
  l.set_outputs();
  Random random{9};
  const Inputs in = make_inputs(l, random);
  BNNSFilter filter = l.create(in.w, in.bias);
  auto* convolution = static_cast<Convolution*>(find_filter(filter));
  const bool fits = winograd_forward.fits(convolution->problem());
  const auto uses = [&] { return std::strcmp(convolution->choice().forward->name, "winograd") == 0; };
  const char* said = std::getenv("OPENBNNS_WINOGRAD");
  const int from_start = said && std::strcmp(said, "0") == 0 ? 0 : 1;
  CHECK(obn_get_winograd() == from_start, "on unless OPENBNNS_WINOGRAD says 0");
  CHECK(uses() == (from_start && fits), "used where it fits");
  CHECK(obn_set_winograd(0) == 0 && obn_get_winograd() == 0, "off");
  CHECK(!uses(), "the library's switch");
  CHECK(obn_filter_set_winograd(filter, 1) == 0, "%s", obn_last_error());
  CHECK(uses() == fits, "the filter's switch wins");
  CHECK(obn_set_winograd(1) == 0 && obn_filter_set_winograd(filter, 0) == 0, "%s", obn_last_error());
  CHECK(!uses(), "the filter's switch wins");
  CHECK(obn_filter_set_winograd(filter, -1) == 0, "%s", obn_last_error());
  CHECK(uses() == fits, "back to the library's");
  CHECK(obn_set_winograd(from_start) == 0, "%s", obn_last_error());
  CHECK(obn_set_winograd(2) == -1 && obn_filter_set_winograd(filter, -2) == -1, "no other numbers");
  CHECK(obn_filter_work_bytes(filter, SIZE_MAX) == SIZE_MAX && obn_filter_work_bytes(filter, 0) == 0, "odd batches");
  CHECK(obn_filter_set_winograd(nullptr, 1) == -1 && obn_filter_work_bytes(nullptr, 1) == SIZE_MAX, "no filter");
  BNNSFilterDestroy(filter);
}

// ---- failures ----

namespace {

void expect_no_filter(const Layer& l, const Weights& w, const Vector& bias, const char* word,
                      const std::function<void(BNNSLayerParametersConvolution&)>& spoil) {
  auto parameters = l.parameters(w, bias);
  spoil(parameters);
  obn_clear_error();
  BNNSFilter filter = l.transposed ? BNNSFilterCreateLayerTransposedConvolution(&parameters, nullptr)
                                   : BNNSFilterCreateLayerConvolution(&parameters, nullptr);
  CHECK(!filter, "a filter was made; expected a sentence about %s", word);
  CHECK(failed_with(word), "\"%s\" does not begin with %s", obn_last_error(),
        word);
  BNNSFilterDestroy(filter);
}

}  // namespace

TEST(convolution_refuses_bad_layers_with_a_sentence) {
  using P = BNNSLayerParametersConvolution;
  for (bool transposed : {false, true}) {
    Layer l;
    l.transposed = transposed;
    l.in = 4;
    l.out = 6;
    l.h = l.w = l.p = l.q = 5;
    l.kh = l.kw = 3;
    l.left = l.right = l.up = l.down = 1;
    const Weights w = l.weights();
    const Vector bias(l.out);
    const auto refuse = [&](const char* word, const std::function<void(P&)>& spoil) {
      expect_no_filter(l, w, bias, word, spoil);
    };
    BNNSFilter good = l.create(w, bias);
    CHECK(good, "%s", obn_last_error());
    BNNSFilterDestroy(good);
    const char* small = transposed ? "input" : "output";
    refuse("input", [](P& p) { p.i_desc.layout = BNNSDataLayoutVector; });
    refuse("output", [](P& p) { p.o_desc.layout = BNNSDataLayout3DFirstMajor; });
    refuse("input", [](P& p) { p.i_desc.data_type = BNNSDataTypeInt32; });
    refuse("output", [](P& p) { p.o_desc.data_type = BNNSDataTypeBoolean; });
    refuse("input", [](P& p) { p.i_desc.size[1] = 0; });
    refuse("input", [](P& p) { p.i_desc.size[2] = SIZE_MAX; });
    refuse("output", [](P& p) { p.o_desc.stride[1] = 2; });
    refuse("weights", [](P& p) { p.w_desc.layout = BNNSDataLayout4DLastMajor; });
    refuse("weights", [](P& p) { p.w_desc.data = nullptr; });
    refuse("weights", [](P& p) { p.w_desc.data = static_cast<std::byte*>(p.w_desc.data) + 1; });
    refuse("weights", [](P& p) { p.w_desc.size[2] = 5; });
    refuse("weights", [](P& p) { p.w_desc.size[3] = 5; });
    refuse("weights", [](P& p) { p.w_desc.layout = BNNSDataLayoutConvolutionWeightsIOHrWr; });
    refuse("weights", [](P& p) { p.w_desc.data_type = BNNSDataTypeBoolean; });
    refuse("weights", [](P& p) { p.w_desc.data_type = BNNSDataTypeIndexed8; });
    refuse("weights", [](P& p) { p.w_desc.size[0] = 8; });
    refuse("weights", [](P& p) { p.x_dilation_stride = 4; });
    refuse("weights", [](P& p) { p.y_dilation_stride = SIZE_MAX; });
    refuse(small, [](P& p) { p.x_stride = 2; });
    refuse(small, [](P& p) { p.pad[1] = 0; });
    refuse(small, [](P& p) { p.y_padding = 1; });  // then left and right are x_padding = 0
    refuse("padding", [](P& p) { p.pad[3] = SIZE_MAX; });
    refuse("padding", [](P& p) { p.y_padding = size_t{1} << 62; });
    refuse("groups", [](P& p) { p.groups = 4; });
    refuse("groups", [](P& p) { p.groups = SIZE_MAX; });
    refuse("weights", [](P& p) { p.groups = 2; });
    refuse("bias", [](P& p) { p.bias.size[0] = 5; });
    refuse("bias", [](P& p) { p.bias.layout = static_cast<BNNSDataLayout>(7); });
    refuse("bias", [](P& p) { p.bias.data_type = BNNSDataTypeInt64; });
    refuse("activation", [](P& p) { p.activation.function = BNNSActivationFunctionGumbel; });
    refuse("activation", [](P& p) { p.activation.function = static_cast<BNNSActivationFunction>(99); });
    Layer packed = l;
    packed.layout = BNNSDataLayoutConvolutionWeightsOIHW_Pack32;
    expect_no_filter(packed, packed.weights(), bias, "weights", [](P& p) { p.w_desc.stride[0] = 2; });
    packed.groups = 2;
    packed.in = 8;
    expect_no_filter(packed, packed.weights(), bias, "weights", [](P&) {});
    if (transposed) refuse("input", [](P& p) { p.i_desc.data_type = BNNSDataTypeInt8; });
  }
  CHECK(!BNNSFilterCreateLayerConvolution(nullptr, nullptr), "no parameters");
  CHECK(!BNNSFilterCreateLayerTransposedConvolution(nullptr, nullptr), "no parameters");
}

TEST(convolution_failing_calls_leave_outputs_alone) {
  for (bool transposed : {false, true}) {
    Layer l;
    l.transposed = transposed;
    l.n = 2;
    l.in = 3;
    l.out = 4;
    l.h = l.w = l.p = l.q = 5;
    l.kh = l.kw = 3;
    l.left = l.right = l.up = l.down = 1;
    l.activation = BNNSActivationFunctionSigmoid;
    l.use_client_ptr = true;
    Random random{10};
    Inputs in = make_inputs(l, random);
    Image y = l.output();
    BNNSFilter filter = l.create(in.w, in.bias);
    CHECK(filter, "%s", obn_last_error());

    const auto refuse_forward = [&](const char* word, const void* x, size_t x_stride, void* to, size_t y_stride) {
      const Inputs before = in;
      const Image y_before = y;
      obn_clear_error();
      CHECK(BNNSFilterApplyBatch(filter, l.n, x, x_stride, to, y_stride) == -1, "expected a failure about %s", word);
      CHECK(failed_with(word), "\"%s\"", obn_last_error());
      CHECK(in.x.bytes == before.x.bytes && in.w.bytes == before.w.bytes && y.bytes == y_before.bytes, "touched");
    };
    auto* x_bytes = static_cast<std::byte*>(in.x.data());
    refuse_forward("input", nullptr, 0, y.data(), 0);
    refuse_forward("output", in.x.data(), 0, nullptr, 0);
    refuse_forward("input", x_bytes + 1, 0, y.data(), 0);
    refuse_forward("output", in.x.data(), 0, y.data(), 7);
    refuse_forward("input", in.x.data(), SIZE_MAX / 8, y.data(), 0);
    refuse_forward("output", in.x.data(), 0, x_bytes + 8, 0);
    refuse_forward("output", in.x.data(), 0, in.w.data(), 0);
    refuse_forward("output", in.x.data(), 0, in.bias.data(), 0);

    struct Call {
      const void *x, *y;
      BNNSNDArrayDescriptor dx, dy, dw, db;
      size_t dx_stride = 0, dy_stride = 0;
    };
    const auto refuse_backward = [&](const char* word, const std::function<void(Call&)>& spoil) {
      Call call{in.x.data(), y.data(), in.dx.descriptor, in.dy.descriptor, in.dw.descriptor, in.db.descriptor};
      spoil(call);
      const Inputs before = in;
      obn_clear_error();
      const int status = BNNSFilterApplyBackwardBatch(filter, l.n, call.x, 0, &call.dx, call.dx_stride, call.y, 0,
                                                      &call.dy, call.dy_stride, &call.dw, &call.db);
      CHECK(status == -1, "expected a failure about %s", word);
      CHECK(failed_with(word), "\"%s\", expected %s", obn_last_error(),
            word);
      CHECK(in.dx.bytes == before.dx.bytes && in.dw.bytes == before.dw.bytes && in.db.bytes == before.db.bytes &&
                in.x.bytes == before.x.bytes && in.dy.bytes == before.dy.bytes && in.w.bytes == before.w.bytes,
            "touched after: %s", obn_last_error());
    };
    refuse_backward("input", [](Call& c) { c.x = nullptr; });
    refuse_backward("output", [](Call& c) { c.y = nullptr; });
    refuse_backward("grad_output", [](Call& c) { c.dy.data = nullptr; });
    refuse_backward("grad_output", [](Call& c) { c.dy.size[0] = 4; });
    refuse_backward("grad_output", [](Call& c) { c.dy.data_type = BNNSDataTypeFloat16; });
    refuse_backward("input_gradient", [](Call& c) { c.dx.data = nullptr; });
    refuse_backward("input_gradient", [](Call& c) { c.dx.layout = BNNSDataLayout3DLastMajor; });
    refuse_backward("input_gradient", [](Call& c) { c.dx_stride = 3; });
    refuse_backward("input_gradient", [](Call& c) { c.dx.flags = static_cast<BNNSNDArrayFlags>(2); });
    refuse_backward("input_gradient", [](Call& c) { c.dx.data = const_cast<void*>(c.x); });
    refuse_backward("input_gradient", [](Call& c) { c.dx.data = const_cast<void*>(c.y); });
    refuse_backward("input_gradient", [](Call& c) { c.dx.data = c.dy.data; });
    refuse_backward("input_gradient", [&](Call& c) { c.dx.data = in.w.data(); });
    refuse_backward("weights_gradient", [](Call& c) { c.dw.data = nullptr; });
    refuse_backward("weights_gradient", [](Call& c) { c.dw.size[3] = 3; });
    refuse_backward("weights_gradient", [](Call& c) { c.dw.layout = BNNSDataLayoutConvolutionWeightsOIHrWr; });
    refuse_backward("weights_gradient", [](Call& c) { c.dw.data_type = BNNSDataTypeInt8; });
    refuse_backward("weights_gradient", [&](Call& c) { c.dw.data = in.w.data(); });
    refuse_backward("input_gradient", [](Call& c) { c.dw.data = c.dx.data; });
    refuse_backward("bias_gradient", [](Call& c) { c.db.size[0] = 5; });
    refuse_backward("bias_gradient", [](Call& c) { c.db.data_type = BNNSDataTypeInt32; });
    refuse_backward("bias_gradient", [](Call& c) { c.db.data = c.dy.data; });
    refuse_backward("weights_gradient", [](Call& c) { c.db.data = c.dw.data; });
    BNNSFilterDestroy(filter);

    // Activations that are not differentiable from y: some never, some for certain values.
    for (auto function : {BNNSActivationFunctionGELUApproximation, BNNSActivationFunctionGELUApproximationSigmoid}) {
      l.activation = function;
      filter = l.create(in.w, in.bias);
      CHECK(filter, "inference works: %s", obn_last_error());
      CHECK(BNNSFilterApplyBatch(filter, l.n, in.x.data(), 0, y.data(), 0) == 0, "%s", obn_last_error());
      y.set(y.count() - 1, -0.1f);
      refuse_backward(function == BNNSActivationFunctionGELUApproximation ? "activation" : "output", [](Call&) {});
      BNNSFilterDestroy(filter);
    }
  }
}

TEST(convolution_random_bad_descriptors_never_crash) {
  Random random{11};
  size_t made = 0;
  for (int round = 0; round < 3000; ++round) {
    const Layer l = random_layer(random);
    const Weights w = l.weights();
    const Vector bias(l.out);
    auto parameters = l.parameters(w, bias);
    for (size_t spoiled = random.between(1, 3); spoiled > 0; --spoiled) {
      constexpr size_t kNumbers[] = {0,    1, 2, 3, 31, 0x10000, 0x30000, 0x40010, size_t{1} << 31, size_t{1} << 40,
                                     size_t{1} << 62, SIZE_MAX / 2, SIZE_MAX};
      const size_t number = kNumbers[random.below(std::size(kNumbers))];
      BNNSNDArrayDescriptor* arrays[] = {&parameters.i_desc, &parameters.w_desc, &parameters.o_desc, &parameters.bias};
      BNNSNDArrayDescriptor& array = *arrays[random.below(4)];
      switch (random.below(8)) {
        case 0: array.size[random.below(4)] = number; break;
        case 1: array.stride[random.below(4)] = number; break;
        case 2: array.layout = static_cast<BNNSDataLayout>(number); break;
        case 3:
          array.data_type = static_cast<BNNSDataType>(random.one_in(2) ? number : 0x20000 + random.below(65));
          break;
        case 4: (random.one_in(2) ? parameters.x_stride : parameters.y_dilation_stride) = number; break;
        case 5: (random.one_in(2) ? parameters.y_padding : parameters.pad[random.below(4)]) = number; break;
        case 6: parameters.groups = number; break;
        default: parameters.activation.function = static_cast<BNNSActivationFunction>(number); break;
      }
    }
    // The filter reads nothing but descriptors: the arrays may be smaller than they say.
    BNNSFilterParameters client = {};
    client.flags = BNNSFlagsUseClientPtr;
    obn_clear_error();
    BNNSFilter filter = l.transposed ? BNNSFilterCreateLayerTransposedConvolution(&parameters, &client)
                                     : BNNSFilterCreateLayerConvolution(&parameters, &client);
    CHECK(filter || *obn_last_error(), "a failure without a sentence");
    made += filter != nullptr;
    if (filter) obn_filter_work_bytes(filter, 3);
    BNNSFilterDestroy(filter);
  }
  CHECK(made > 100 && made < 2000, "%zu of 3000 filters were made", made);
}

// ---- the first interface ----

TEST(convolution_first_interface) {
  BNNSImageStackDescriptor in = {3, 3, 1, 3, 9, BNNSDataTypeFloat32, 1.0f, 0.0f};
  BNNSImageStackDescriptor out = {2, 2, 1, 2, 4, BNNSDataTypeFloat32, 1.0f, 0.0f};
  const float ones[] = {1, 1, 1, 1}, half = 0.5f;
  const uint8_t indices[] = {7, 7, 7, 7};
  const int8_t twos[] = {2, 2, 2, 2};
  float table[256] = {};
  table[7] = 3.0f;
  BNNSConvolutionLayerParameters p = {};
  p.x_stride = p.y_stride = 1;
  p.k_width = p.k_height = 2;
  p.in_channels = p.out_channels = 1;
  p.weights.data = ones;
  p.weights.data_type = BNNSDataTypeFloat32;
  const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto check = [&](float factor, float bias) {
    BNNSFilter filter = BNNSFilterCreateConvolutionLayer(&in, &out, &p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    float y[4] = {};
    CHECK(BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
    const float expected[] = {12, 16, 24, 28};
    for (int i = 0; i < 4; ++i) CHECK(y[i] == factor * expected[i] + bias, "%g", y[i]);
    BNNSFilterDestroy(filter);
  };
  check(1.0f, 0.0f);
  p.bias.data = &half;
  p.bias.data_type = BNNSDataTypeFloat32;
  check(1.0f, 0.5f);
  p.weights = {twos, BNNSDataTypeInt8, 0.5f, 1.0f, nullptr};
  check(2.0f, 0.5f);
  p.weights = {indices, BNNSDataTypeIndexed8, 0.0f, 0.0f, table};
  check(3.0f, 0.5f);
  const auto refuse = [&](const char* word) {
    CHECK(!BNNSFilterCreateConvolutionLayer(&in, &out, &p, nullptr), "expected a sentence about %s", word);
    CHECK(failed_with(word), "\"%s\"", obn_last_error());
  };
  p.weights.data_table = nullptr;
  refuse("weights");
  p.weights = {ones, BNNSDataTypeFloat32, 0.0f, 0.0f, nullptr};
  out.width = 1;  // fine for the later interface, not for this one
  refuse("output");
  out.width = 2;
  p.in_channels = 2;
  refuse("input");
  p.in_channels = 1;
  in.row_stride = 2;
  refuse("input");
  in.row_stride = 0;  // packed
  in.image_stride = 0;
  check(1.0f, 0.5f);
  CHECK(!BNNSFilterCreateConvolutionLayer(nullptr, &out, &p, nullptr), "no input");
}

}  // namespace obn::convolution
