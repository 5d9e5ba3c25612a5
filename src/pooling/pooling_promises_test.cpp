// Pooling, the promises of the C interface: indices, the same bits in any way of working, memory, refusals; and the
// first interface.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "base/memory.h"
#include "openbnns/bnns/legacy.h"
#include "pooling/pooling_test.h"

namespace obn::pooling {

using namespace layer_test;

// ---- indices ----

TEST(pooling_stray_indices_scatter_anywhere_in_the_plane) {
  for (const Target& target : all_targets()) {
    Shape shape;
    shape.h = shape.w = 4;
    shape.p = shape.q = shape.kh = shape.kw = shape.sy = shape.sx = 2;
    Array dy = shape.output(), dx = shape.input(), indices = shape.indices();
    dy.fill({1, 2, 3, 4});
    for (size_t i = 0; i < 4; ++i) indices.set_index(i, 15 - i % 2);
    const auto parameters = shape.parameters(nullptr);
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
    static_cast<Pooling*>(find_filter(filter))->kernels = target.kernels;
    const int status = BNNSPoolingFilterApplyBackwardBatchEx(filter, 1, nullptr, 0, &dx.descriptor, 0, nullptr, 0,
                                                             &dy.descriptor, 0, nullptr, BNNSDataTypeUInt32,
                                                             indices.data(), 0);
    CHECK(status == 0, "%s", obn_last_error());
    for (size_t i = 0; i < 16; ++i) {
      const float expected = i == 15 ? 4.0f : i == 14 ? 6.0f : 0.0f;
      CHECK(dx.get(i) == expected, "dx %zu on %s is %g", i, target.name, static_cast<double>(dx.get(i)));
    }
    BNNSFilterDestroy(filter);
  }
}

// One index after the other leaves its window, to all sides; its gradient goes where it points.
TEST(pooling_every_stray_index_is_found) {
  for (const Target& target : all_targets())
    for (size_t kh : {2, 3}) {
      Shape shape;
      shape.c = 4;  // of one sample: the planes of indices follow each other
      shape.p = 5;
      shape.q = 7;
      shape.kh = shape.sy = kh;
      shape.kw = shape.sx = 2;
      shape.h = kh * shape.p;
      shape.w = 2 * shape.q;
      const auto parameters = shape.parameters(nullptr);
      BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
      static_cast<Pooling*>(find_filter(filter))->kernels = target.kernels;
      const size_t windows = shape.p * shape.q, all = shape.n * shape.c * windows, plane = shape.h * shape.w;
      const auto first_of = [&](size_t i) { return i % windows / shape.q * kh * shape.w + i % shape.q * 2; };
      Random random{kh};
      Array dy = shape.output(), dx = shape.input(), indices = shape.indices();
      dy.fill(random);
      for (size_t stray = 0; stray < all; ++stray) {
        const size_t first = first_of(stray), beside[] = {first + plane - 1, first + 2, first + plane - shape.w,
                                                          first + kh * shape.w};
        const size_t moved = beside[stray % 4] % plane;
        std::vector<float> expected(shape.n * shape.c * plane, 0.0f);
        for (size_t i = 0; i < all; ++i) {
          const size_t position = i == stray ? moved : first_of(i);
          indices.set_index(i, position);
          expected[i / windows * plane + position] += dy.get(i);
        }
        const int status = BNNSPoolingFilterApplyBackwardBatchEx(
            filter, shape.n, nullptr, 0, &dx.descriptor, dx.batch_stride, nullptr, 0, &dy.descriptor, dy.batch_stride,
            nullptr, BNNSDataTypeUInt32, indices.data(), indices.batch_stride);
        CHECK(status == 0, "%s", obn_last_error());
        size_t wrong = 0;
        for (size_t i = 0; i < expected.size(); ++i) wrong += dx.get(i) != expected[i];
        CHECK(wrong == 0, "%zu gradients with a stray index at %zu on %s", wrong, stray, target.name);
      }
      BNNSFilterDestroy(filter);
    }
}

TEST(pooling_index_out_of_range_is_refused_before_anything_is_written) {
  for (BNNSPoolingFunction function : {BNNSPoolingFunctionMax, BNNSPoolingFunctionUnMax})
    for (BNNSDataType index_type : {BNNSDataTypeUInt32, BNNSDataTypeUInt64})
      for (size_t bad = 0; bad < 2 * 3 * 9 * 11; bad += 7) {
        Shape shape;
        shape.function = function;
        shape.index_type = index_type;
        shape.n = 2;
        shape.c = 3;
        shape.h = 18;
        shape.w = 22;
        shape.p = 9;
        shape.q = 11;
        shape.kh = shape.kw = shape.sy = shape.sx = 2;
        Random random{bad};
        Inputs inputs = make_inputs(shape, random);
        Array y = shape.output();
        const uint64_t wrong[] = {18 * 22, 0x80000000u, index_type == BNNSDataTypeUInt32 ? 0xffffffffu : ~uint64_t{0},
                                  index_type == BNNSDataTypeUInt32 ? 1000 : uint64_t{1} << 32};
        inputs.indices.set_index(bad, wrong[bad / 7 % 4]);
        const auto parameters = shape.parameters(nullptr);
        BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
        const std::vector<std::byte> dx_before = inputs.dx.bytes, y_before = y.bytes;
        obn_clear_error();
        int status = BNNSPoolingFilterApplyBackwardBatchEx(
            filter, 2, nullptr, 0, &inputs.dx.descriptor, inputs.dx.batch_stride, nullptr, 0, &inputs.dy.descriptor,
            inputs.dy.batch_stride, nullptr, index_type, inputs.indices.data(), inputs.indices.batch_stride);
        CHECK(status == -1 && std::strstr(obn_last_error(), "indices: "), "backward with a wrong index at %zu", bad);
        CHECK(inputs.dx.bytes == dx_before, "input_gradient was written");
        if (function == BNNSPoolingFunctionUnMax) {
          status = BNNSPoolingFilterApplyBatchEx(filter, 2, inputs.x.data(), inputs.x.batch_stride, y.data(),
                                                 y.batch_stride, index_type, inputs.indices.data(),
                                                 inputs.indices.batch_stride);
          CHECK(status == -1 && y.bytes == y_before, "forward with a wrong index at %zu", bad);
        }
        BNNSFilterDestroy(filter);
      }
}

// ---- threads ----

TEST(pooling_any_number_of_threads_gives_the_same_bits) {
  const size_t threads_before = obn_get_num_threads();
  Random random{6};
  for (BNNSPoolingFunction function : kFunctions)
    for (size_t side : {40, 600}) {
      Shape shape;
      shape.function = function;
      shape.n = side == 40 ? 8 : 1;
      shape.c = side == 40 ? 16 : 2;
      shape.h = shape.w = side;
      shape.kh = shape.kw = 3;
      shape.sy = shape.sx = 2;
      shape.left = shape.right = shape.up = shape.down = 1;
      shape.p = shape.q = side / 2;
      const Inputs inputs = make_inputs(shape, random);
      obn_set_num_threads(1);
      const Results one = run(shape, inputs, nullptr, "one thread");
      for (size_t threads : {2, 7}) {
        obn_set_num_threads(threads);
        const Results many = run(shape, inputs, nullptr, "many threads");
        CHECK(one.y.bytes == many.y.bytes && one.indices.bytes == many.indices.bytes && one.dx.bytes == many.dx.bytes &&
                  one.dx_from_indices.bytes == many.dx_from_indices.bytes && one.db == many.db,
              "function %u, side %zu: %zu threads differ from one", static_cast<unsigned>(function), side, threads);
      }
    }
  obn_set_num_threads(threads_before);
}

// Arrays above 16 MB are written past the caches, from any address; the same planes one at a time are not.
TEST(pooling_large_arrays_equal_small_ones) {
  Random random{9};
  for (BNNSPoolingFunction function : {BNNSPoolingFunctionMax, BNNSPoolingFunctionAverageCountExcludePadding})
    for (BNNSDataType index_type : {BNNSDataTypeUInt32, BNNSDataTypeUInt64}) {
      Shape shape;
      shape.function = function;
      shape.index_type = index_type;
      shape.c = 5;
      shape.h = shape.w = 1001;
      shape.kh = shape.kw = 2;
      shape.p = shape.q = 1000;
      const Inputs inputs = make_inputs(shape, random);
      const Results large = run(shape, inputs, nullptr, "large");
      const size_t image = shape.h * shape.w * 4, windows = shape.p * shape.q * 4;
      const size_t index = shape.p * shape.q * bytes_of(index_type);
      shape.c = 1;
      for (size_t c = 0; c < 5; ++c) {
        Inputs part{shape.input(), shape.output(), shape.input(), shape.indices(), {0.0f}};
        std::memcpy(part.x.data(), inputs.x.bytes.data() + c * image, image);
        std::memcpy(part.dy.data(), inputs.dy.bytes.data() + c * windows, windows);
        const Results small = run(shape, part, nullptr, "small");
        CHECK(!std::memcmp(small.y.bytes.data(), large.y.bytes.data() + c * windows, windows), "output, plane %zu", c);
        CHECK(!std::memcmp(small.dx.bytes.data(), large.dx.bytes.data() + c * image, image), "dx, plane %zu", c);
        if (function != BNNSPoolingFunctionMax) continue;
        CHECK(!std::memcmp(small.indices.bytes.data(), large.indices.bytes.data() + c * index, index),
              "indices, plane %zu", c);
        CHECK(!std::memcmp(small.dx_from_indices.bytes.data(), large.dx_from_indices.bytes.data() + c * image, image),
              "dx from indices, plane %zu", c);
      }
    }
}

// ---- the C interface ----

TEST(pooling_memory_comes_from_the_caller_and_goes_back) {
  using ::obn::test::Memory;
  float bias[2] = {1, 2};
  Shape shape;
  shape.c = 2;
  shape.has_bias = true;
  const auto parameters = shape.parameters(bias);
  size_t needed = 0;
  for (BNNSFilter filter = nullptr; !filter && needed < 10; ++needed) {
    const BNNSFilterParameters options = Memory::start(needed);
    obn_clear_error();
    filter = BNNSFilterCreateLayerPooling(&parameters, &options);
    if (filter) {
      CHECK(Memory::taken == needed && Memory::returned == 0, "%zu blocks", Memory::taken);
      BNNSFilterDestroy(filter);
    } else {
      CHECK(failed_with("memory"), "%s", obn_last_error());
    }
    CHECK(Memory::taken == Memory::returned, "%zu blocks, %zu given back", Memory::taken, Memory::returned);
  }
  CHECK(needed == 4, "expected bias, tables and filter; %zu", needed - 1);
}

TEST(pooling_generic_calls_serve_pooling) {
  Shape shape;
  shape.function = BNNSPoolingFunctionAverageCountExcludePadding;
  shape.h = shape.w = 3;
  shape.p = shape.q = shape.kh = shape.kw = shape.sy = shape.sx = 2;
  const auto parameters = shape.parameters(nullptr);
  BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
  Array x = shape.input(), y = shape.output(), dy = shape.output(), dx = shape.input();
  x.fill({1, 2, 3, 4, 5, 6, 7, 8, 9});
  dy.fill({4, 2, 2, 1});
  CHECK(BNNSFilterApply(filter, x.data(), y.data()) == 0, "%s", obn_last_error());
  const float means[] = {3, 4.5f, 7.5f, 9};
  for (size_t i = 0; i < 4; ++i) CHECK(y.get(i) == means[i], "y %zu is %g", i, static_cast<double>(y.get(i)));
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, nullptr, 0, &dx.descriptor, 0, nullptr, 0, &dy.descriptor, 0, nullptr,
                                     nullptr) == 0,
        "%s", obn_last_error());
  for (size_t i = 0; i < 9; ++i) CHECK(dx.get(i) == 1.0f, "dx %zu is %g", i, static_cast<double>(dx.get(i)));
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, nullptr, 0, &dx.descriptor, 0, nullptr, 0, &dy.descriptor, 0,
                                     &dx.descriptor, nullptr) == -1,
        "pooling has no weights");
  CHECK(BNNSFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0) == 0, "an empty batch is fine");
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, nullptr, 0, nullptr, 0, nullptr, 0, &dy.descriptor, 0, nullptr,
                                     nullptr) == 0,
        "no gradients asked for is fine");
  BNNSFilterDestroy(filter);
}

TEST(pooling_bias_is_copied_unless_the_client_keeps_it) {
  for (bool client : {false, true})
    for (BNNSDataType type : kTypes) {
      Shape shape;
      shape.c = 2;
      auto parameters = shape.parameters(nullptr);
      Array bias(type, 1, 1, 1, 2, 3);
      bias.fill({1, 2});
      parameters.bias = bias.descriptor;
      parameters.bias.layout = BNNSDataLayoutVector;
      BNNSFilterParameters options = {};
      if (client) options.flags = BNNSFlagsUseClientPtr;
      BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, &options);
      CHECK(filter, "%s", obn_last_error());
      bias.fill({10, 20});
      const float x[2] = {0.5f, 0.25f};
      float y[2] = {0, 0};
      CHECK(BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
      CHECK(y[0] == (client ? 10.5f : 1.5f) && y[1] == (client ? 20.25f : 2.25f), "%g %g",
            static_cast<double>(y[0]), static_cast<double>(y[1]));
      BNNSFilterDestroy(filter);
    }
}

TEST(pooling_legacy_creator) {
  BNNSImageStackDescriptor in = {}, out = {};
  in.width = in.height = 3;
  out.width = out.height = 2;
  in.channels = out.channels = 1;
  in.data_type = out.data_type = BNNSDataTypeFloat32;
  BNNSPoolingLayerParameters parameters = {};
  parameters.x_stride = parameters.y_stride = 1;
  parameters.k_width = parameters.k_height = 2;
  parameters.in_channels = parameters.out_channels = 1;
  const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  float y[4] = {};
  BNNSFilter filter = BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
  CHECK(y[0] == 5 && y[1] == 6 && y[2] == 8 && y[3] == 9, "max");
  BNNSFilterDestroy(filter);

  const int8_t bias = 6;
  parameters.bias = {&bias, BNNSDataTypeInt8, 0.5f, 1.0f, nullptr};
  parameters.pooling_function = BNNSPoolingFunctionAverage;
  filter = BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
  CHECK(y[0] == 7 && y[1] == 8 && y[2] == 10 && y[3] == 11, "average of 3, 4, 6, 7 plus 0.5·6 + 1");
  BNNSFilterDestroy(filter);

  parameters.in_channels = 2;
  CHECK(!BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr), "channels must agree");
  parameters.in_channels = 1;
  in.row_stride = 2;
  CHECK(!BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr), "rows must not overlap");
  in.row_stride = 3;
  out.height = 4;
  CHECK(!BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr), "the first position of a window must exist");
}

TEST(pooling_refuses_what_cannot_be) {
  Shape shape;
  shape.c = 64;
  shape.h = shape.w = 112;
  shape.kh = shape.kw = 3;
  shape.sy = shape.sx = 2;
  shape.p = 57;
  shape.q = 56;
  auto parameters = shape.parameters(nullptr);
  CHECK(!BNNSFilterCreateLayerPooling(&parameters, nullptr), "57 rows of windows");
  CHECK(!std::strcmp(obn_last_error(),
                     "output: expected at most (64, 56, 56) for input (64, 112, 112), kernel_size (3, 3), stride "
                     "(2, 2), padding (left 0, right 0, up 0, down 0), dilation (1, 1); got (64, 57, 56)"),
        "%s", obn_last_error());
  auto refuses = [&](const char* word) {
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
    CHECK(!filter, "%s was accepted", word);
    CHECK(failed_with(word), "%s: %s", word, obn_last_error());
    shape.p = 56;
    parameters = shape.parameters(nullptr);
  };
  shape.p = 56;
  parameters = shape.parameters(nullptr);
  parameters.k_width = 0;
  refuses("kernel_size");
  parameters.k_width = parameters.k_height = SIZE_MAX / 2;
  refuses("kernel_size");
  parameters.x_padding = SIZE_MAX;
  refuses("padding");
  parameters.pooling_function = static_cast<BNNSPoolingFunction>(5);
  refuses("pooling");
  parameters.o_desc.size[2] = 63;
  refuses("output");
  parameters.o_desc.data_type = BNNSDataTypeFloat16;
  refuses("output");
  parameters.i_desc.layout = BNNSDataLayout3DLastMajor;
  refuses("input");
  parameters.i_desc.data_type = BNNSDataTypeInt8;
  refuses("input");
  float bias[64] = {};
  shape.has_bias = true;
  parameters = shape.parameters(bias);
  parameters.bias.size[0] = 63;
  refuses("bias");
  parameters = shape.parameters(bias);
  parameters.bias.data_type = BNNSDataTypeInt8;
  refuses("bias");
  shape.has_bias = false;
  parameters = shape.parameters(nullptr);
  parameters.activation.function = static_cast<BNNSActivationFunction>(99);
  refuses("activation");
}

TEST(pooling_failing_calls_leave_outputs_alone) {
  Shape shape;
  shape.h = shape.w = 4;
  shape.p = shape.q = shape.kh = shape.kw = shape.sy = shape.sx = 2;
  shape.activation = BNNSActivationFunctionTanh;
  Random random{7};
  Inputs inputs = make_inputs(shape, random);
  const auto parameters = shape.parameters(nullptr);
  BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
  Array y = shape.output();
  std::vector<float> db(1, 5.0f);
  BNNSNDArrayDescriptor bias_gradient = {};
  bias_gradient.layout = BNNSDataLayoutVector;
  bias_gradient.size[0] = 1;
  bias_gradient.data_type = BNNSDataTypeFloat32;
  bias_gradient.data = db.data();
  const std::vector<std::byte> y_before = y.bytes, dx_before = inputs.dx.bytes;
  int expected_failures = 0;
  auto refused = [&](int status, const char* word) {
    CHECK(status == -1 && failed_with(word), "%s: status %d, %s", word,
          status, obn_last_error());
    obn_clear_error();
    ++expected_failures;
  };
  void *x = inputs.x.data(), *indices = inputs.indices.data();
  const BNNSDataType u32 = BNNSDataTypeUInt32;
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, nullptr, 0, y.data(), 0, u32, indices, 0), "input");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, x, 0, nullptr, 0, u32, indices, 0), "output");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, x, 0, x, 0, u32, indices, 0), "output");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, x, 0, y.data(), 0, BNNSDataTypeInt32, indices, 0), "indices");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, x, 0, y.data(), 0, u32, y.data(), 0), "indices");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 2, x, 1, y.data(), 1, u32, indices, 0), "output");
  refused(BNNSPoolingFilterApplyBatchEx(nullptr, 1, x, 0, y.data(), 0, u32, indices, 0), "filter");

  auto backward = [&](const void* in, BNNSNDArrayDescriptor* dx, const void* out, BNNSNDArrayDescriptor* dy,
                      BNNSNDArrayDescriptor* gradient, BNNSDataType type, const void* at) {
    return BNNSPoolingFilterApplyBackwardBatchEx(filter, 1, in, 0, dx, 0, out, 0, dy, 0, gradient, type, at, 0);
  };
  BNNSNDArrayDescriptor *dx = &inputs.dx.descriptor, *dy = &inputs.dy.descriptor;
  refused(backward(x, dx, y.data(), nullptr, nullptr, u32, nullptr), "grad_output");
  refused(backward(nullptr, dx, y.data(), dy, nullptr, u32, nullptr), "input");
  refused(backward(x, dx, nullptr, dy, nullptr, u32, nullptr), "output");
  refused(backward(x, dx, y.data(), dy, nullptr, BNNSDataTypeInt64, indices), "indices");
  BNNSNDArrayDescriptor wrong = *dx;
  wrong.data = inputs.x.data();
  refused(backward(x, &wrong, y.data(), dy, nullptr, u32, nullptr), "input_gradient");
  wrong = *dx;
  wrong.data = nullptr;
  refused(backward(x, &wrong, y.data(), dy, nullptr, u32, nullptr), "input_gradient");
  wrong = *dx;
  wrong.size[0] = 3;
  refused(backward(x, &wrong, y.data(), dy, nullptr, u32, nullptr), "input_gradient");
  wrong = *dy;
  wrong.data_type = BNNSDataTypeFloat16;
  refused(backward(x, dx, y.data(), &wrong, nullptr, u32, nullptr), "grad_output");
  wrong = bias_gradient;
  wrong.size[0] = 2;
  refused(backward(x, dx, y.data(), dy, &wrong, u32, nullptr), "bias_gradient");
  wrong = bias_gradient;
  wrong.data = inputs.dx.data();
  refused(backward(x, dx, y.data(), dy, &wrong, u32, nullptr), "bias_gradient");
  CHECK(expected_failures == 17, "%d calls were tried", expected_failures);
  CHECK(y.bytes == y_before && inputs.dx.bytes == dx_before && db[0] == 5.0f, "a failing call wrote something");
  BNNSFilterDestroy(filter);
}

TEST(pooling_activation_that_needs_x_cannot_be_trained) {
  Shape shape;
  shape.activation = BNNSActivationFunctionSiLU;
  Array x = shape.input(), y = shape.output(), dx = shape.input(), dy = shape.output();
  const auto parameters = shape.parameters(nullptr);
  BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x.data(), y.data()) == 0, "%s", obn_last_error());
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, x.data(), 0, &dx.descriptor, 0, y.data(), 0, &dy.descriptor, 0,
                                     nullptr, nullptr) == -1,
        "SiLU cannot be differentiated from its output");
  BNNSFilterDestroy(filter);
}

// Parameter blocks with a few random fields spoilt: either they are refused with a sentence, or they run.
TEST(pooling_random_parameter_blocks_never_crash) {
  Random random{8};
  int refused = 0, accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    Shape shape;
    shape.function = kFunctions[random.below(5)];
    shape.h = shape.w = 6;
    shape.kh = shape.kw = 2;
    shape.p = shape.q = 5;
    auto parameters = shape.parameters(nullptr);
    size_t* const words[] = {
        &parameters.k_width,          &parameters.k_height,          &parameters.x_stride,
        &parameters.y_stride,         &parameters.x_dilation_stride, &parameters.y_dilation_stride,
        &parameters.x_padding,        &parameters.y_padding,         &parameters.pad[0],
        &parameters.pad[1],           &parameters.pad[2],            &parameters.pad[3],
        &parameters.i_desc.size[0],   &parameters.o_desc.size[1],    &parameters.i_desc.stride[1],
        &parameters.o_desc.stride[2], &parameters.i_desc.size[2],    &parameters.o_desc.stride[0]};
    const size_t values[] = {0, 1, 2, 3, 7, 1u << 20, size_t{1} << 40, SIZE_MAX / 2, SIZE_MAX / 3, SIZE_MAX};
    for (size_t spoilt = random.between(1, 3); spoilt > 0; --spoilt)
      *words[random.below(std::size(words))] = values[random.below(std::size(values))];
    if (random.below(8) == 0) parameters.pooling_function = static_cast<BNNSPoolingFunction>(random.below(9));
    if (random.below(8) == 0) parameters.i_desc.data_type = static_cast<BNNSDataType>(random.next());
    if (random.below(8) == 0) parameters.o_desc.layout = static_cast<BNNSDataLayout>(random.next());
    if (random.below(8) == 0) parameters.activation.function = static_cast<BNNSActivationFunction>(random.below(40));
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
    if (!filter) {
      CHECK(*obn_last_error(), "refused without a sentence");
      ++refused;
      continue;
    }
    ++accepted;
    parameters.i_desc.data = parameters.o_desc.data = &parameters;  // only sizes are asked for
    const size_t in_bytes = BNNSNDArrayGetDataSize(&parameters.i_desc);
    const size_t out_bytes = BNNSNDArrayGetDataSize(&parameters.o_desc);
    if (in_bytes < 100000 && out_bytes < 100000) {
      std::vector<float> x(in_bytes / 4 + 1), y(out_bytes / 4 + 1);
      std::vector<size_t> indices(std::max(x.size(), y.size()) * 2, 0);
      BNNSPoolingFilterApplyBatch(filter, 1, x.data(), 0, y.data(), 0, indices.data(), 0);
      parameters.i_desc.data = x.data();
      parameters.o_desc.data = y.data();
      BNNSPoolingFilterApplyBackwardBatch(filter, 1, nullptr, 0, &parameters.i_desc, 0, y.data(), 0,
                                          &parameters.o_desc, 0, nullptr, indices.data(), 0);
    }
    BNNSFilterDestroy(filter);
  }
  CHECK(refused >= 1000 && accepted >= 100, "%d refused, %d accepted", refused, accepted);
}

}  // namespace obn::pooling
