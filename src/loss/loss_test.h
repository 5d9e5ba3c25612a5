// What the tests of losses share: values that suit a loss, blocks, tensors of a call, and cases of YOLO.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/test_array.h"
#include "loss/loss.h"
#include "openbnns/openbnns.h"

namespace obn::loss::test {

using ::obn::test::PlacedArray;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Losses that need no block of their own besides the four plain ones: all but YOLO.
inline constexpr Function kAll[] = {
    BNNSLossFunctionSoftmaxCrossEntropy, BNNSLossFunctionSigmoidCrossEntropy, BNNSLossFunctionMeanSquareError,
    BNNSLossFunctionHuber, BNNSLossFunctionLog, BNNSLossFunctionCosineDistance, BNNSLossFunctionHinge,
    BNNSLossFunctionMeanAbsoluteError, BNNSLossFunctionCategoricalCrossEntropy};

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  float uniform(float low, float high) { return low + (high - low) * static_cast<float>(below(1 << 20)) * 0x1p-20f; }
};

// Any of the blocks but YOLO's: they share their first four fields and the place of the fifth.
inline BNNSLayerParametersLossHuber block_of(Function function, Reduction reduction, size_t n, float fifth = 0.0f) {
  BNNSLayerParametersLossHuber p{};
  p.function = function;
  p.reduction = reduction;
  p.i_desc = vector_of(n);
  p.o_desc = vector_of(reduction == BNNSLossReductionNone && loss::ref::is_per_value(function) ? n : 1);
  p.huber_delta = fifth;
  return p;
}

// What x and labels of a loss look like.
inline float input_of(Function function, Random& random) {
  if (function == BNNSLossFunctionLog) return random.uniform(0.01f, 0.99f);
  return random.uniform(-4.0f, 4.0f);
}
inline float label_of(Function function, Random& random) {
  if (function == BNNSLossFunctionCategoricalCrossEntropy || function == BNNSLossFunctionHinge) return random.coin();
  if (function == BNNSLossFunctionMeanSquareError || function == BNNSLossFunctionHuber ||
      function == BNNSLossFunctionMeanAbsoluteError)
    return random.uniform(-3.0f, 3.0f);
  return random.below(3) ? random.uniform(0.0f, 1.0f) : static_cast<float>(random.coin());
}

inline std::vector<double> doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

// |got - want| within `relative` of |want| + scale; equal infinities and two NaN agree.
inline bool near(double got, double want, double relative, double scale) {
  if (std::isnan(want) || std::isinf(want)) return std::isnan(want) ? std::isnan(got) : got == want;
  return std::fabs(got - want) <= relative * (std::fabs(want) + scale);
}

// A tensor of a call: like the descriptor, but with stride0 and the strides that follow from it.
inline PlacedArray tensor_of(BNNSNDArrayDescriptor like, size_t samples, size_t gap, size_t stride0) {
  for (size_t& s : like.stride) s = 0;
  like.stride[0] = stride0;
  return PlacedArray(like, samples, gap, 1);
}

struct YoloCase {
  BNNSLayerParametersLossYolo block{};
  std::vector<float> anchors;

  YoloCase(size_t rows, size_t columns, size_t count, size_t classes, bool rescore) : anchors(2 * count) {
    for (size_t i = 0; i < anchors.size(); ++i) anchors[i] = 1.0f + 0.5f * static_cast<float>(i);
    block.function = BNNSLossFunctionYolo;
    block.reduction = BNNSLossReductionSum;
    block.i_desc = vector_of(rows * columns * count * (5 + classes));
    block.o_desc = vector_of(1);
    block.number_of_grid_rows = rows;
    block.number_of_grid_columns = columns;
    block.number_of_anchor_boxes = count;
    block.anchor_box_size = 5 + classes;
    block.rescore = rescore;
    block.scale_xy = 10;
    block.scale_wh = 8;
    block.scale_object = 100;
    block.scale_no_object = 5;
    block.scale_classification = 2;
    block.object_minimum_iou = 0.7f;
    block.no_object_maximum_iou = 0.3f;
    block.anchors_data = anchors.data();
  }
  size_t values() const { return block.i_desc.size[0]; }

  // Predictions anywhere; truth in about half of the cells, the same for every anchor of one.
  void fill(Random& random, size_t batch, std::vector<float>* x, std::vector<float>* l) const {
    const size_t box = block.anchor_box_size, cell = block.number_of_anchor_boxes * box;
    x->resize(batch * values());
    l->assign(batch * values(), 0.0f);
    for (float& v : *x) v = random.uniform(-1.5f, 1.5f);
    for (size_t at = 0; at < l->size(); at += cell) {
      if (random.coin()) continue;
      float truth[] = {random.uniform(0, 1), random.uniform(0, 1), random.uniform(-1, 1), random.uniform(-1, 1), 1.0f};
      const size_t c = box > 5 ? random.below(box - 5) : 0;
      for (size_t a = 0; a < block.number_of_anchor_boxes; ++a) {
        std::copy_n(truth, 5, l->data() + at + a * box);
        if (box > 5) (*l)[at + a * box + 5 + c] = 1.0f;
      }
    }
  }
};

}  // namespace obn::loss::test
