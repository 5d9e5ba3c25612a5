// Convolution: the C interface against the recorded vectors and the definition.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "convolution/convolution_test.h"

namespace obn::convolution {

using namespace layer_test;

// ---- vectors of the specification ----

TEST(convolution_reproduces_the_documented_vectors) {
  const auto apply = [](const Layer& layer, std::vector<float> x, std::vector<float> w, float bias) {
    Weights weights = layer.weights();
    Vector b(1);
    b.set(0, bias);
    for (size_t k = 0; k < w.size(); ++k) weights.set(k, w[k]);
    std::vector<float> y(layer.out * layer.p * layer.q);
    BNNSFilter filter = layer.create(weights, b);
    CHECK(filter, "%s", obn_last_error());
    CHECK(BNNSFilterApply(filter, x.data(), y.data()) == 0, "%s", obn_last_error());
    BNNSFilterDestroy(filter);
    return y;
  };
  Layer layer;
  layer.h = layer.w = 3;
  layer.kh = layer.kw = 2;
  layer.set_outputs();
  std::vector<float> y = apply(layer, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 1, 1, 1}, 0);
  CHECK((y == std::vector<float>{12, 16, 24, 28}), "%g %g %g %g", y[0], y[1], y[2], y[3]);

  layer.h = layer.w = 4;
  layer.kh = layer.kw = 3;
  layer.set_outputs();
  y = apply(layer, {0, 43, 3, 30, 0, 98, 0, 0, 7, 38, 0, 0, 19, 20, 175, 50}, {-2, 0, 1, 0, 1, 0, -1, -2, 0}, 0.5f);
  CHECK((y == std::vector<float>{18.5f, -93.5f, -20.5f, -565.5f}), "%g %g %g %g", y[0], y[1], y[2], y[3]);

  layer = {};
  layer.in = 3;
  layer.h = layer.w = layer.kh = layer.kw = 2;
  layer.set_outputs();
  y = apply(layer, {10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33}, std::vector<float>(12, 1.0f / 12), 0);
  CHECK(std::fabs(y[0] - 21.5f) < 1e-5f, "%g", y[0]);

  layer = {};
  layer.transposed = true;
  layer.p = layer.q = 4;
  layer.kh = layer.kw = 2;
  layer.set_outputs();
  y = apply(layer, std::vector<float>(9, 1.0f), {1, 1, 1, 1}, 0);
  CHECK((y == std::vector<float>{1, 2, 2, 1, 2, 4, 4, 2, 2, 4, 4, 2, 1, 2, 2, 1}), "transposed ones");
  layer.p = layer.q = layer.h = layer.w = 2;
  layer.kh = layer.kw = 1;
  y = apply(layer, {1, 2, 3, 4}, {2}, 0);
  CHECK((y == std::vector<float>{2, 4, 6, 8}), "transposed 1x1");
}

// ---- the definition ----

TEST(convolution_random_layers_agree_with_the_definition) {
  Random random{1};
  for (int round = 0; round < 1500; ++round) check_layer(random_layer(random), random);
}

TEST(convolution_common_shapes_agree_with_the_definition) {
  Random random{2};
  struct Shape {
    size_t n, in, out, h, w, k, s, pad, groups;
  };
  const Shape shapes[] = {{2, 16, 16, 14, 14, 3, 1, 1, 1},  {1, 3, 8, 17, 15, 7, 2, 3, 1},
                          {2, 32, 16, 7, 7, 1, 1, 0, 1},    {2, 8, 16, 9, 10, 3, 2, 1, 1},
                          {2, 12, 12, 9, 17, 3, 1, 1, 12},  {3, 1, 32, 10, 10, 3, 1, 1, 1},
                          {1, 8, 8, 8, 8, 5, 1, 2, 1},      {2, 4, 8, 6, 20, 3, 1, 1, 4},
                          {1, 6, 4, 5, 5, 4, 2, 1, 2}};
  for (const Shape& shape : shapes)
    for (bool transposed : {false, true})
      for (auto activation : {BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear}) {
        Layer l;
        l.transposed = transposed;
        l.n = shape.n;
        l.in = transposed ? shape.out : shape.in;
        l.out = transposed ? shape.in : shape.out;
        l.kh = l.kw = shape.k;
        l.sy = l.sx = shape.s;
        l.left = l.right = l.up = l.down = shape.pad;
        l.groups = shape.groups;
        (transposed ? l.p : l.h) = shape.h;
        (transposed ? l.q : l.w) = shape.w;
        l.set_outputs();
        l.activation = activation;
        l.use_client_ptr = true;
        check_layer(l, random);
      }
}

TEST(convolution_weight_layouts_hold_the_same_weights) {
  Random random{3};
  Layer l;
  l.in = 5;
  l.out = 37;  // one full block of 32 lanes and a part
  l.h = 6;
  l.w = 7;
  l.kh = 2;
  l.kw = 3;
  l.n = 2;
  l.set_outputs();
  const Inputs plain = make_inputs(l, random);
  const Results expected = run(l, plain);
  for (BNNSDataLayout layout : kLayouts)
    for (bool use_client_ptr : {false, true})
      for (bool accumulate : {false, true}) {
        l.layout = layout;
        l.use_client_ptr = use_client_ptr;
        l.accumulate = accumulate;
        Inputs in = plain;
        in.w = l.weights();
        in.dw = l.weights();
        // Lanes of padding must not be read.
        if (layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32)
          for (size_t i = 0; i < in.w.bytes.size() / sizeof(float); ++i) in.w.set_at(i, kNan), in.dw.set_at(i, kNan);
        for (size_t k = 0; k < in.w.count(); ++k) in.w.set(k, plain.w.get(k)), in.dw.set(k, 1.0f);
        Results got = run(l, in);
        CHECK(got.y.bytes == expected.y.bytes, "output in layout %s", name_of(layout));
        size_t zeros = 0;
        for (size_t k = 0; k < got.dw.count(); ++k) {
          const float wanted = expected.dw.get(k) + (accumulate ? 1.0f : 0.0f);
          CHECK(std::fabs(got.dw.get(k) - wanted) <= 1e-4f, "dw %zu in layout %s: %g, expected %g", k, name_of(layout),
                got.dw.get(k), wanted);
          got.dw.set(k, 1.0f);
        }
        for (size_t i = 0; i < got.dw.bytes.size() / sizeof(float); ++i) zeros += got.dw.get_at(i) == 0.0f;
        CHECK(zeros == got.dw.bytes.size() / sizeof(float) - got.dw.count(), "%zu lanes of padding are 0", zeros);
      }
}

TEST(convolution_transposed_takes_weights_in_the_order_of_its_problem) {
  Random random{21};
  for (size_t groups : {1, 3})
    for (bool use_client_ptr : {false, true}) {
      Layer l;
      l.transposed = true;
      l.in = 6;
      l.out = 9;
      l.groups = groups;
      l.n = l.kh = l.sy = 2;
      l.kw = 3;
      l.p = 8;
      l.q = 7;
      l.use_client_ptr = use_client_ptr;
      l.set_outputs();
      const Inputs plain = make_inputs(l, random);
      const Results expected = run(l, plain);

      // The same as (in, out / groups, kh, kw).
      const size_t taps = l.kh * l.kw, in = l.in / groups, out = l.out / groups;
      const auto place_of = [&](size_t k) {
        const size_t i = k / taps % in, o = k / (taps * in);
        return k % taps + taps * (o % out + out * (i + in * (o / out)));
      };
      Inputs ordered = plain;
      for (Weights* w : {&ordered.w, &ordered.dw}) {
        w->descriptor.layout = BNNSDataLayout4DFirstMajor;
        const size_t size[] = {l.in, out, l.kh, l.kw};
        std::copy_n(size, 4, w->descriptor.size);
      }
      for (size_t k = 0; k < plain.w.count(); ++k) ordered.w.set_at(place_of(k), plain.w.get(k));
      const Results got = run(l, ordered);
      CHECK(got.y.bytes == expected.y.bytes, "output with %zu groups", groups);
      CHECK(got.dx.bytes == expected.dx.bytes, "dx with %zu groups", groups);
      for (size_t k = 0; k < plain.w.count(); ++k)
        CHECK(got.dw.get_at(place_of(k)) == expected.dw.get(k), "dw %zu with %zu groups: %g, expected %g", k, groups,
              got.dw.get_at(place_of(k)), expected.dw.get(k));
    }
}

TEST(convolution_strides_of_single_rows_and_columns_are_free) {
  Random random{13};
  for (size_t h : {1, 2})
    for (size_t w : {1, 20})
      for (size_t c : {1, 8}) {
        Layer l;
        l.n = 2;
        l.in = l.out = c;
        l.h = h;
        l.w = w;
        l.kh = l.kw = 3;
        l.left = l.right = l.up = l.down = 1;
        l.set_outputs();
        l.activation = BNNSActivationFunctionTanh;
        Inputs in = make_inputs(l, random);
        const Results expected = run(l, in);
        auto parameters = l.parameters(in.w, in.bias);
        Results got{l.output(), in.dx, in.dw, in.db};
        for (auto* image : {&parameters.i_desc, &parameters.o_desc, &in.dy.descriptor, &got.dx.descriptor}) {
          if (w == 1) image->stride[0] = 0, image->stride[1] = 1;
          if (h == 1) image->stride[1] = image->stride[0];
          if (c == 1) image->stride[2] = image->stride[1];
        }
        BNNSFilter filter = BNNSFilterCreateLayerConvolution(&parameters, nullptr);
        CHECK(filter, "%s", obn_last_error());
        const size_t step = c * h * w;
        CHECK(BNNSFilterApplyBatch(filter, l.n, in.x.data(), step, got.y.data(), step) == 0, "%s", obn_last_error());
        CHECK(BNNSFilterApplyBackwardBatch(filter, l.n, in.x.data(), step, &got.dx.descriptor, step, got.y.data(), step,
                                           &in.dy.descriptor, step, &got.dw.descriptor, &got.db.descriptor) == 0,
              "%s", obn_last_error());
        CHECK(got.y.bytes == expected.y.bytes, "output (%zu, %zu, %zu)", c, h, w);
        CHECK(got.dx.bytes == expected.dx.bytes, "input_gradient (%zu, %zu, %zu)", c, h, w);
        CHECK(got.dw.bytes == expected.dw.bytes, "weights_gradient (%zu, %zu, %zu)", c, h, w);
        CHECK(got.db.bytes == expected.db.bytes, "bias_gradient (%zu, %zu, %zu)", c, h, w);
        BNNSFilterDestroy(filter);
      }
}

}  // namespace obn::convolution
