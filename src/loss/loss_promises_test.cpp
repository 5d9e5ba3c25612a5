// Losses, the promises of the C interface: refusals, any block, an allocator that fails.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/filter.h"
#include "base/view.h"
#include "loss/loss_filter.h"
#include "loss/loss_test.h"

namespace obn::loss {

using namespace test;

TEST(loss_refuses_with_a_sentence) {
  const auto refused = [](const void* block, const char* start) {
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerLoss(block, nullptr);
    BNNSFilterDestroy(filter);
    return !filter && failed_with(start);
  };
  CHECK(refused(nullptr, "layer_params"), "%s", obn_last_error());
  auto block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionSum, 4);
  for (unsigned function : {0u, 11u, 99u}) {
    block.function = static_cast<Function>(function);
    CHECK(refused(&block, "loss: expected a function from 1 to 10"), "%s", obn_last_error());
  }
  block = block_of(BNNSLossFunctionMeanSquareError, static_cast<Reduction>(5), 4);
  CHECK(refused(&block, "reduction"), "%s", obn_last_error());
  for (float delta : {0.0f, -1.0f, std::nanf("")}) {
    block = block_of(BNNSLossFunctionHuber, BNNSLossReductionSum, 4, delta);
    CHECK(refused(&block, "delta: expected a number above 0"), "%s", obn_last_error());
  }
  for (float smooth : {-0.1f, 1.5f, std::nanf("")}) {
    for (Function function : {BNNSLossFunctionSoftmaxCrossEntropy, BNNSLossFunctionSigmoidCrossEntropy}) {
      block = block_of(function, BNNSLossReductionSum, 4, smooth);
      CHECK(refused(&block, "label_smoothing: expected a number from 0 to 1"), "%s", obn_last_error());
    }
  }
  block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionSum, 4);
  block.i_desc.data_type = BNNSDataTypeInt8;
  CHECK(refused(&block, "input: expected float32, float16 or bfloat16; got int8"), "%s", obn_last_error());
  block.i_desc.data_type = BNNSDataTypeFloat32;
  block.o_desc.data_type = BNNSDataTypeFloat16;
  CHECK(refused(&block, "output: expected float32; got float16"), "%s", obn_last_error());
  block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionSum, 4);
  block.o_desc.size[0] = 4;
  CHECK(refused(&block, "output: expected 1 value without gaps, as the reduction of mean_square_error; got (4,)"), "%s",
        obn_last_error());
  block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionNone, 4);
  block.o_desc.stride[0] = 2;
  CHECK(refused(&block, "output: expected 4 values without gaps"), "%s", obn_last_error());

  YoloCase yolo(2, 2, 2, 1, true);
  const BNNSLayerParametersLossYolo good = yolo.block;
  BNNSLayerParametersLossYolo bad = good;
  bad.reduction = BNNSLossReductionMean;
  CHECK(refused(&bad, "reduction: expected sum (1) for yolo"), "%s", obn_last_error());
  bad = good;
  bad.anchors_data = nullptr;
  CHECK(refused(&bad, "anchors: expected 2 pairs"), "%s", obn_last_error());
  bad = good;
  bad.anchor_box_size = 4;
  CHECK(refused(&bad, "anchor_box_size: expected at least 5"), "%s", obn_last_error());
  bad.anchor_box_size = SIZE_MAX;
  CHECK(refused(&bad, "anchor_box_size: expected cells of at most"), "%s", obn_last_error());
  bad = good;
  bad.number_of_grid_rows = 3;
  CHECK(refused(&bad, "input: expected rows·columns·anchors·anchor_box_size"), "%s", obn_last_error());
  bad.number_of_grid_rows = 0;
  CHECK(refused(&bad, "grid"), "%s", obn_last_error());
  bad = good;
  bad.huber_delta = -1;
  CHECK(refused(&bad, "huber_delta"), "%s", obn_last_error());

  // Calls.
  block = block_of(BNNSLossFunctionSoftmaxCrossEntropy, BNNSLossReductionSum, 4);
  BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
  block.function = BNNSLossFunctionCosineDistance;
  BNNSFilter cosine = BNNSFilterCreateLayerLoss(&block, nullptr);
  float x[8] = {}, l[8] = {}, w[8] = {}, y = 7, dx[8] = {7, 7, 7, 7, 7, 7, 7, 7};
  int32_t classes[] = {1, 3};
  BNNSNDArrayDescriptor gradient = vector_of(4, dx), up = vector_of(1, w);
  const auto apply = [&](const void* in, const void* labels, const void* weights, size_t count, void* out,
                         BNNSNDArrayDescriptor* delta, const char* start) {
    obn_clear_error();
    return BNNSLossFilterApplyBatch(filter, 2, in, 0, labels, 0, weights, count, out, delta, 0) != 0 &&
           failed_with(start);
  };
  CHECK(apply(nullptr, l, w, 0, &y, &gradient, "input: expected data"), "%s", obn_last_error());
  CHECK(apply(x, nullptr, w, 0, &y, &gradient, "labels: expected data"), "%s", obn_last_error());
  CHECK(apply(x, l, nullptr, 2, &y, &gradient, "weights: expected data"), "%s", obn_last_error());
  CHECK(apply(x, l, w, 3, &y, &gradient, "weights: expected 0, 1, 2 (one per sample) or 8 values; got 3"), "%s",
        obn_last_error());
  CHECK(apply(x, l, w, 0, nullptr, &gradient, "output: expected data"), "%s", obn_last_error());
  CHECK(apply(x, l, w, 0, x + 3, &gradient, "output: expected memory apart from input"), "%s", obn_last_error());
  BNNSNDArrayDescriptor wrong = gradient;
  wrong.size[0] = 3;
  CHECK(apply(x, l, w, 0, &y, &wrong, "input_gradient: expected (4,)"), "%s", obn_last_error());
  wrong = gradient;
  wrong.data = nullptr;
  CHECK(apply(x, l, w, 0, &y, &wrong, "input_gradient: expected data"), "%s", obn_last_error());
  const auto backward = [&](BNNSNDArrayDescriptor* delta, const BNNSNDArrayDescriptor* upstream, const char* start) {
    obn_clear_error();
    return BNNSLossFilterApplyBackwardBatch(filter, 2, x, 0, delta, 0, l, 0, nullptr, 0, upstream, 0) != 0 &&
           failed_with(start);
  };
  CHECK(backward(nullptr, &up, "input_gradient: expected a descriptor"), "%s", obn_last_error());
  CHECK(backward(&gradient, nullptr, "grad_output: expected a descriptor"), "%s", obn_last_error());
  wrong = up;
  wrong.size[0] = 2;
  CHECK(backward(&gradient, &wrong, "grad_output: expected (1,)"), "%s", obn_last_error());
  const auto by_class = [&](BNNSFilter which, BNNSDataType type, const char* start) {
    obn_clear_error();
    return obn_loss_apply_classes(which, 2, x, 0, classes, type, 0, nullptr, 0, &y, &gradient, 0) != 0 &&
           failed_with(start);
  };
  CHECK(by_class(cosine, BNNSDataTypeInt32, "labels: expected values like the input for cosine_distance"), "%s",
        obn_last_error());
  CHECK(by_class(filter, BNNSDataTypeFloat32, "labels: expected class numbers of an integer type"), "%s",
        obn_last_error());
  CHECK(by_class(filter, BNNSDataTypeInt4, "labels: expected class numbers of an integer type"), "%s",
        obn_last_error());
  for (int32_t number : {4, -1}) {
    classes[1] = number;
    CHECK(by_class(filter, BNNSDataTypeInt32, "labels: expected class numbers from 0 to 3; got"), "%s",
          obn_last_error());
  }
  for (float v : dx) CHECK(v == 7, "the gradient is written");
  CHECK(y == 7, "the loss is written");
  CHECK(BNNSFilterApplyBatch(filter, 1, x, 0, &y, 0) != 0 && failed_with("filter: a loss filter has"), "%s",
        obn_last_error());
  CHECK(BNNSLossFilterApplyBatch(nullptr, 1, x, 0, l, 0, nullptr, 0, &y, nullptr, 0) != 0 && failed_with("filter"),
        "%s", obn_last_error());
  CHECK(BNNSLossFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, nullptr, 0) == 0, "%s",
        obn_last_error());
  CHECK(BNNSLossFilterApplyBatch(filter, SIZE_MAX / 8, x, 1, l, 1, nullptr, 0, &y, nullptr, 0) != 0,
        "expected a refusal");
  BNNSFilterDestroy(filter);
  BNNSFilterDestroy(cosine);
}

// Blocks and calls by the thousand: nothing crashes, and what fails says why.
TEST(loss_of_an_empty_batch_is_zero) {
  for (Function function : kAll)
    for (unsigned reduction = 0; reduction <= BNNSLossReductionNonZeroWeightMean; ++reduction)
      for (bool is_half : {false, true}) {
        auto block = block_of(function, static_cast<Reduction>(reduction), 4, 1.0f);
        if (is_half) block.i_desc.data_type = block.o_desc.data_type = BNNSDataTypeFloat16;
        BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
        CHECK(filter, "%s", obn_last_error());
        uint16_t y[10], dx[8];  // float32 or float16, more than is written
        std::fill_n(y, 10, uint16_t{0x1234});
        std::fill_n(dx, 8, uint16_t{0x1234});
        BNNSNDArrayDescriptor gradient = block.i_desc, upstream = block.o_desc;
        gradient.data = dx;
        upstream.data = y;
        const auto check = [&](int status, size_t zeros) {
          CHECK(status == 0, "%s", obn_last_error());
          for (size_t i = 0; i < 10; ++i) CHECK(y[i] == (i < zeros ? 0 : 0x1234), "%x in place %zu", y[i], i);
          for (uint16_t value : dx) CHECK(value == 0x1234, "%x in an empty gradient", value);
        };
        const float weight = 2.0f;
        const int backward = BNNSLossFilterApplyBackwardBatch(filter, 0, nullptr, 0, &gradient, 0, nullptr, 0, &weight, 1,
                                                              &upstream, 0);
        check(backward, 0);
        const size_t zeros = reduction == BNNSLossReductionNone ? 0 : is_half ? 1 : 2;
        check(BNNSLossFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0, &weight, 1, y, &gradient, 0), zeros);
        std::fill_n(y, 10, uint16_t{0x1234});
        check(obn_loss_apply_classes(filter, 0, nullptr, 0, nullptr, BNNSDataTypeInt32, 0, nullptr, 0, y, nullptr, 0),
              zeros);
        BNNSFilterDestroy(filter);
      }
}

TEST(loss_function_chooses_its_runner) {
  const struct {
    Function function;
    size_t n;
    const char* runner;
  } cases[] = {{BNNSLossFunctionMeanSquareError, 4, "values"},
               {BNNSLossFunctionSigmoidCrossEntropy, 4, "values"},
               {BNNSLossFunctionSoftmaxCrossEntropy, kShortRow, "short rows"},
               {BNNSLossFunctionSoftmaxCrossEntropy, kShortRow + 1, "softmax"},
               {BNNSLossFunctionCategoricalCrossEntropy, 4, "short rows"},
               {BNNSLossFunctionCosineDistance, 4, "cosine"}};
  for (const auto& c : cases) {
    const auto block = block_of(c.function, BNNSLossReductionSum, c.n);
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    CHECK(filter, "%s", obn_last_error());
    const char* runner = static_cast<const Loss*>(find_filter(filter))->runner().name;
    CHECK(std::strcmp(runner, c.runner) == 0, "%s, expected %s", runner, c.runner);
    BNNSFilterDestroy(filter);
  }
}

TEST(loss_survives_any_block) {
  Random random(20);
  constexpr size_t kSizes[] = {0, 1, 2, 3, 6, 8, SIZE_MAX, size_t{1} << 40};
  alignas(16) static float memory[5][64];
  YoloCase yolo(1, 2, 1, 1, false);
  for (int round = 0; round < 20000; ++round) {
    BNNSLayerParametersLossYolo block = yolo.block;
    block.function = static_cast<Function>(random.below(12));
    block.reduction = static_cast<Reduction>(random.below(6));
    if (block.function != BNNSLossFunctionYolo) {
      const size_t n = random.between(1, 12);
      block.i_desc = vector_of(n);
      block.o_desc = vector_of(random.coin() ? n : 1);
      block.huber_delta = random.coin() ? 0.5f : random.uniform(-1, 2);
    }
    BNNSNDArrayDescriptor dx = block.i_desc, dy = block.o_desc;
    for (BNNSNDArrayDescriptor* d : {&block.i_desc, &block.o_desc, &dx, &dy}) {
      if (random.below(10) == 0) d->layout = static_cast<BNNSDataLayout>(random.coin() ? 0x20000 : random.next());
      if (random.below(10) == 0)
        d->data_type = random.coin() ? BNNSDataTypeFloat16 : static_cast<BNNSDataType>(random.next() & 0x1f803f);
      if (random.below(10) == 0) d->size[random.below(3)] = kSizes[random.below(8)];
      if (random.below(10) == 0) d->stride[random.below(3)] = kSizes[random.below(8)];
      if (random.below(20) == 0) d->flags = static_cast<BNNSNDArrayFlags>(random.below(3));
    }
    if (random.below(10) == 0) block.anchor_box_size = kSizes[random.below(8)];
    if (random.below(10) == 0) block.number_of_anchor_boxes = kSizes[random.below(8)];
    if (random.below(10) == 0) block.number_of_grid_columns = kSizes[random.below(8)];
    if (block.number_of_anchor_boxes > 1) block.anchors_data = memory[4];
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    CHECK(filter || *obn_last_error(), "round %d fails silently", round);
    if (!filter) continue;
    View views[4];
    const BNNSNDArrayDescriptor* all[] = {&block.i_desc, &block.o_desc, &dx, &dy};
    bool fits = true;  // in the memory given
    for (int k = 0; k < 4; ++k)
      fits = fits &&
             (read_view(*all[k], Access::read, "x", &views[k]) != 0 || views[k].span + views[k].packed_batch <= 60);
    if (fits) {
      const size_t batch = random.below(3), count = kSizes[random.below(6)];
      dx.data = random.below(10) ? memory[2] : nullptr;
      dy.data = random.below(10) ? memory[3] : nullptr;
      obn_clear_error();
      const void* w = random.below(5) ? memory[4] : nullptr;
      CHECK(BNNSLossFilterApplyBatch(filter, batch, memory[0], random.below(2), memory[1], 0, w, count, memory[3],
                                     random.coin() ? &dx : nullptr, 0) == 0 || *obn_last_error(), "round %d", round);
      obn_clear_error();
      CHECK(BNNSLossFilterApplyBackwardBatch(filter, batch, memory[0], 0, &dx, 0, memory[1], 0, w, count, &dy,
                                             random.below(3)) == 0 || *obn_last_error(), "round %d", round);
      int64_t classes[] = {static_cast<int64_t>(random.below(4)) - 1, 0};
      obn_clear_error();
      CHECK(obn_loss_apply_classes(filter, batch, memory[0], 0, classes,
                                   static_cast<BNNSDataType>(0x20000 | random.below(65)), 0, nullptr, 0, memory[3], &dx,
                                   0) == 0 ||
                *obn_last_error(),
            "round %d", round);
    }
    BNNSFilterDestroy(filter);
  }
}

TEST(loss_lives_with_an_allocator_that_fails) {
  using ::obn::test::Memory;
  YoloCase yolo(1, 1, 2, 1, false);
  for (size_t allowed = 0; allowed <= 2; ++allowed) {
    const BNNSFilterParameters options = Memory::start(allowed);
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&yolo.block, &options);
    CHECK((filter != nullptr) == (allowed == 2), "%zu blocks", allowed);
    BNNSFilterDestroy(filter);
    CHECK(Memory::taken == Memory::returned, "%zu blocks are lost", Memory::taken - Memory::returned);
  }
}

}  // namespace obn::loss
