// The loss of YOLO: by hand, its gradient against central differences, all types and thread counts.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "activation/activation.h"
#include "base/types.h"
#include "loss/loss_test.h"

namespace obn::loss {

using namespace test;

// One cell, one anchor, everything by hand.
TEST(loss_yolo_by_hand) {
  YoloCase one(1, 1, 1, 2, false);
  BNNSFilter filter = BNNSFilterCreateLayerLoss(&one.block, nullptr);
  CHECK(filter, "%s", obn_last_error());
  const float x[] = {0.5f, -0.25f, 0.5f, 2.0f, 0.25f, 1.0f, -1.0f};
  float l[] = {0.25f, 0.75f, 0.25f, 0.25f, 1.0f, 0.0f, 1.0f}, y, dx[7];
  BNNSNDArrayDescriptor gradient = vector_of(7, dx);
  CHECK(BNNSLossFilterApplyBatch(filter, 1, x, 0, l, 0, nullptr, 0, &y, &gradient, 0) == 0, "%s", obn_last_error());
  const auto sigma = [](double v) { return 1 / (1 + std::exp(-v)); };
  const double ex = sigma(0.5) - 0.25, ey = sigma(-0.25) - 0.75;
  const double want = 10 * (ex * ex + ey * ey) + 8 * (0.5 * 0.25 * 0.25 + (1.75 - 0.5)) + 100 * -std::log(sigma(0.25)) +
                      2 * std::log(1 + std::exp(2.0));
  CHECK(near(y, want, 1e-6, 0), "%g, want %g", y, want);
  const double slopes[] = {20 * ex * sigma(0.5) * (1 - sigma(0.5)),
                           20 * ey * sigma(-0.25) * (1 - sigma(-0.25)),
                           8 * 0.25,
                           8,
                           100 * (sigma(0.25) - 1),
                           2 * sigma(2.0),
                           -2 * sigma(2.0)};
  for (size_t i = 0; i < 7; ++i) CHECK(near(dx[i], slopes[i], 1e-6, 0), "%zu: %g, want %g", i, dx[i], slopes[i]);
  l[4] = 0.0f;  // no object: the confidence alone counts
  CHECK(BNNSLossFilterApplyBatch(filter, 1, x, 0, l, 0, nullptr, 0, &y, &gradient, 0) == 0, "%s", obn_last_error());
  CHECK(near(y, 5 * -std::log(1 - sigma(0.25)), 1e-6, 0), "%g", y);
  for (size_t i = 0; i < 7; ++i) CHECK(near(dx[i], i == 4 ? 5 * sigma(0.25) : 0.0, 1e-6, 0), "%zu: %g", i, dx[i]);
  BNNSFilterDestroy(filter);
}

TEST(loss_yolo_gradient_is_the_derivative) {
  Random random(18);
  for (int round = 0; round < 60; ++round) {
    // Rescored confidences move with the box; the gradient takes the overlap for a constant, so only without.
    YoloCase c(random.between(1, 3), random.between(1, 3), random.between(1, 3), random.below(4), false);
    std::vector<float> x, l;
    const size_t batch = random.between(1, 2);
    c.fill(random, batch, &x, &l);
    Yolo yolo;
    yolo.rows = c.block.number_of_grid_rows;
    yolo.columns = c.block.number_of_grid_columns;
    yolo.anchors = c.block.number_of_anchor_boxes;
    yolo.box = c.block.anchor_box_size;
    yolo.scale_xy = 10;
    yolo.scale_wh = 8;
    yolo.scale_object = 100;
    yolo.scale_no_object = 5;
    yolo.scale_classes = 2;
    yolo.object_minimum = 0.7f;
    yolo.no_object_maximum = 0.3f;
    yolo.sizes = c.anchors.data();
    const size_t cell = yolo.anchors * yolo.box;
    std::vector<double> iou(yolo.anchors), iou_after(yolo.anchors);
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&c.block, nullptr);
    std::vector<float> dx(x.size());
    float y, up = -0.5f;
    BNNSNDArrayDescriptor gradient = vector_of(c.values(), dx.data());
    const BNNSNDArrayDescriptor upstream = vector_of(1, &up);
    CHECK(BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, nullptr, 0, &y, nullptr, 0) == 0, "%s",
          obn_last_error());
    CHECK(BNNSLossFilterApplyBackwardBatch(filter, batch, x.data(), 0, &gradient, 0, l.data(), 0, nullptr, 0, &upstream,
                                           0) == 0, "%s", obn_last_error());
    double sum = 0;
    for (size_t at = 0; at < x.size(); at += cell) {
      sum += yolo_cell(yolo, x.data() + at, l.data() + at, iou.data(), 1.0f, nullptr);
      for (size_t i = at; i < at + cell; ++i) {
        const float here = x[i], h = 0x1p-8f;
        x[i] = here + h;
        const double above = yolo_cell(yolo, x.data() + at, l.data() + at, iou_after.data(), 1.0f, nullptr);
        x[i] = here - h;
        const double below = yolo_cell(yolo, x.data() + at, l.data() + at, iou.data(), 1.0f, nullptr);
        x[i] = here;
        const double slope = -0.5 * (above - below) / (2.0 * h);
        bool steps = false;  // an anchor changed sides: no derivative there
        for (size_t a = 0; a < yolo.anchors; ++a)
          for (double border : {0.7, 0.3}) steps = steps || (iou[a] < border) != (iou_after[a] < border);
        steps = steps || (std::max_element(iou.begin(), iou.end()) - iou.begin()) !=
                             (std::max_element(iou_after.begin(), iou_after.end()) - iou_after.begin());
        CHECK(steps || near(dx[i], slope, 1e-3, 1), "round %d, %zu: %g, differences say %g", round, i % yolo.box, dx[i],
              slope);
      }
    }
    CHECK(near(y, sum, 1e-6, 0), "%g, want %g", y, sum);
    BNNSFilterDestroy(filter);
  }
}

TEST(loss_yolo_any_type_and_thread_count) {
  Random random(19);
  const size_t threads_before = obn_get_num_threads(), batch = 5;
  YoloCase c(7, 9, 3, 4, true);
  std::vector<float> x, l;
  c.fill(random, batch, &x, &l);
  BNNSFilter filter = BNNSFilterCreateLayerLoss(&c.block, nullptr);
  std::vector<float> first, dx(x.size());
  float y = 0, first_y = 0;
  BNNSNDArrayDescriptor gradient = vector_of(c.values(), dx.data());
  for (size_t threads : {1, 2, 7}) {
    obn_set_num_threads(threads);
    CHECK(BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, nullptr, 9999, &y, &gradient, 0) == 0, "%s",
          obn_last_error());  // weights are not looked at
    if (threads == 1) {
      first = dx;
      first_y = y;
    }
    CHECK(y == first_y && dx == first, "%zu threads differ", threads);
  }
  obn_set_num_threads(threads_before);
  BNNSFilterDestroy(filter);

  for (BNNSDataType type : {BNNSDataTypeFloat16, BNNSDataTypeBFloat16}) {
    c.block.i_desc.data_type = type;
    filter = BNNSFilterCreateLayerLoss(&c.block, nullptr);
    PlacedArray xh = tensor_of(c.block.i_desc, batch, 3, 2), lh = tensor_of(c.block.i_desc, batch, 1, 2),
                dxh = tensor_of(c.block.i_desc, batch, 2, 1);
    // x and labels lie like the filter's input, so give that the strides of these tensors.
    BNNSFilterDestroy(filter);
    c.block.i_desc.stride[0] = 2;
    filter = BNNSFilterCreateLayerLoss(&c.block, nullptr);
    c.block.i_desc.stride[0] = 0;
    for (size_t b = 0; b < batch; ++b) {
      for (size_t i = 0; i < c.values(); ++i) {
        xh.set(b, i, x[b * c.values() + i]);
        lh.set(b, i, l[b * c.values() + i]);
        dxh.set(b, i, 0.5);
      }
    }
    dxh.descriptor.flags = BNNSNDArrayFlagBackpropAccumulate;
    CHECK(BNNSLossFilterApplyBatch(filter, batch, xh.data(), xh.batch_stride, lh.data(), lh.batch_stride, nullptr, 0,
                                   &y, &dxh.descriptor, dxh.batch_stride) == 0,
          "%s", obn_last_error());
    const double slack = type == BNNSDataTypeFloat16 ? 2e-3 : 2e-2;
    CHECK(near(y, first_y, slack, 0), "%g, want %g", y, first_y);
    size_t far = 0;  // rounding moves some anchors across a border
    for (size_t b = 0; b < batch; ++b)
      for (size_t i = 0; i < c.values(); ++i) far += !near(dxh.get(b, i), first[b * c.values() + i] + 0.5, slack, 3);
    CHECK(far * 50 < x.size(), "%zu of %zu gradients differ", far, x.size());
    BNNSFilterDestroy(filter);
  }
}

}  // namespace obn::loss
