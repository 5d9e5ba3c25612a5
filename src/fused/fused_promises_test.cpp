// Fused layers, the promises of the C interface: refusals, results in place, memory, blocks with random changes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "fused/fused_test.h"

namespace obn::fused {

using namespace test;

TEST(fused_refuses_what_cannot_be) {
  Setup s;
  Pair pair(s, 1);
  pair.describe();
  const auto refuses = [](size_t count, std::vector<BNNSFilterType> types, std::vector<const void*> blocks,
                          const char* word) {
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateFusedLayer(count, types.data(), blocks.data(), nullptr);
    CHECK(!filter, "%s was accepted", word);
    CHECK(std::strstr(obn_last_error(), word), "expected a sentence with '%s'; got '%s'", word, obn_last_error());
    BNNSFilterDestroy(filter);
  };
  const void *conv = &pair.convolution, *norm = &pair.norm;
  for (size_t count : {size_t{0}, size_t{1}, size_t{4}})
    refuses(count, {BNNSConvolution, BNNSBatchNorm, BNNSBatchNorm, BNNSBatchNorm}, {conv, norm, norm, norm}, "two");
  for (unsigned a = 0; a < 12; ++a)
    for (unsigned b = 0; b < 12; ++b) {
      const bool has_norm = b >= BNNSBatchNorm && b <= BNNSGroupNorm;
      const bool has_weights = a == BNNSConvolution || a == BNNSFullyConnected || a == BNNSTransposedConvolution;
      if (has_weights && (has_norm || b == BNNSQuantization)) continue;
      if (a == BNNSArithmetic && has_norm) continue;
      refuses(2, {static_cast<BNNSFilterType>(a), static_cast<BNNSFilterType>(b)}, {conv, norm}, "layers: expected");
    }
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, nullptr}, "NULL");
  CHECK(!BNNSFilterCreateFusedLayer(2, nullptr, nullptr, nullptr), "NULL was accepted");
  BNNSLayerParametersNormalization other = pair.norm;
  other.i_desc.size[2] = other.o_desc.size[2] = 3;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, &other}, "input of the second layer");
  other = pair.norm;
  other.i_desc.data_type = BNNSDataTypeFloat16;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, &other}, "float32, as the first");
  other = pair.norm;
  other.i_desc.stride[2] = 100;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, &other}, "stride");
  other = pair.norm;
  other.epsilon = -1.0f;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, &other}, "epsilon");
  BNNSLayerParametersConvolution no_weights = pair.convolution;
  no_weights.w_desc.data = nullptr;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {&no_weights, norm}, "weights");
  BNNSLayerParametersArithmetic sum = {};
  refuses(2, {BNNSArithmetic, BNNSBatchNorm}, {&sum, norm}, "function");
  sum.arithmetic_function = static_cast<BNNSArithmeticFunction>(99);
  refuses(2, {BNNSArithmetic, BNNSBatchNorm}, {&sum, norm}, "function");
  BNNSArithmeticBinary binary = {pair.z.descriptor, BNNSConstant, pair.z.descriptor, BNNSParameter, pair.z.descriptor,
                                 BNNSParameter};
  sum.arithmetic_function = BNNSArithmeticAdd;
  sum.arithmetic_function_fields = &binary;
  refuses(2, {BNNSArithmetic, BNNSBatchNorm}, {&sum, norm}, "sample");
}

TEST(fused_failing_calls_leave_outputs_alone) {
  for (First kind : kFirsts) {
    Setup s;
    s.first = kind;
    s.client = true;
    s.has_moving = true;
    s.c = 16;  // more weights than outputs
    Pair pair(s, 2), before(s, 2);
    if (!pair.make_fused()) continue;
    const bool is_sum = kind == First::arithmetic;
    const auto refused = [&](int status, const char* word) {
      CHECK(status == -1, "%s: '%s' was accepted", s.text().c_str(), word);
      CHECK(std::strstr(obn_last_error(), word), "expected a sentence with '%s'; got '%s'", word, obn_last_error());
      for (auto array : {&Pair::y, &Pair::dw, &Pair::db, &Pair::dgamma, &Pair::dbeta, &Pair::mean, &Pair::w,
                         &Pair::gamma})
        CHECK((pair.*array).bytes == (before.*array).bytes, "'%s': something was written", word);
      for (size_t k = 0; k < pair.dx.size(); ++k)
        CHECK(pair.dx[k].bytes == before.dx[k].bytes, "'%s': an input gradient was written", word);
      obn_clear_error();
    };
    const void* in[] = {pair.x[0].data(), pair.x.back().data()};
    const auto apply = [&](size_t inputs, const void** x, void* y, bool training) {
      return is_sum ? BNNSFusedFilterApplyMultiInputBatch(pair.fused, s.n, inputs, x, nullptr, y, 0, training)
                    : BNNSFusedFilterApplyBatch(pair.fused, s.n, x[0], 0, y, 0, training);
    };
    refused(pair.apply_backward(), "training");
    const void* no_input[] = {nullptr, nullptr};
    const size_t inputs = pair.x.size();
    refused(apply(inputs, no_input, pair.y.data(), true), "input");
    refused(apply(inputs, in, nullptr, true), "output");
    refused(apply(inputs, in, pair.gamma.data(), true), "gamma");
    refused(apply(inputs, in, static_cast<float*>(pair.x[0].data()) + 1, true), "overlap");
    if (!is_sum) {
      refused(BNNSFusedFilterApplyMultiInputBatch(pair.fused, s.n, 1, in, nullptr, pair.y.data(), 0, true),
              "arithmetic");
      refused(apply(1, in, pair.w.data(), true), "weights");
    } else {
      refused(apply(1, in, pair.y.data(), true), "inputs: expected 2");
      refused(apply(3, in, pair.y.data(), true), "inputs: expected 2");
      refused(BNNSFusedFilterApplyBatch(pair.fused, s.n, in[0], 0, pair.y.data(), 0, true), "inputs: expected 2");
      refused(BNNSFusedFilterApplyMultiInputBatch(pair.fused, s.n, 2, nullptr, nullptr, pair.y.data(), 0, true),
              "inputs");
    }
    // An inference keeps nothing.
    CHECK(pair.apply(false) == 0, "%s", obn_last_error());
    before.y = pair.y;
    refused(pair.apply_backward(), "training");
    CHECK(pair.apply() == 0, "%s", obn_last_error());
    before.y = pair.y;
    before.mean = pair.mean;
    before.variance = pair.variance;

    BNNSNDArrayDescriptor dy = pair.dy.with_data(), dw = {}, db = {}, dbeta = pair.dbeta.with_data(),
                          dgamma = pair.dgamma.with_data(), dx[2], *dx_p[2];
    for (size_t k = 0; k < inputs; ++k) dx[k] = pair.dx[k].with_data();
    for (size_t k = 0; k < 2; ++k) dx_p[k] = &dx[k];
    if (!is_sum) {
      dw = pair.dw.with_data();
      db = pair.db.with_data();
    }
    const auto gradients = [&](const void* y, size_t batch) {
      BNNSNDArrayDescriptor* parameters[] = {&dw, &db, &dbeta, &dgamma};
      if (is_sum)
        return BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, batch, 2, in, nullptr, dx_p, nullptr, y, 0, &dy,
                                                           0, parameters + 2);
      return BNNSFusedFilterApplyBackwardBatch(pair.fused, batch, in[0], 0, dx_p[0], 0, y, 0, &dy, 0, parameters);
    };
    refused(gradients(nullptr, s.n), "output");
    refused(gradients(pair.y.data(), s.n + 1), "samples");
    const auto with = [&](void** slot, void* value, const char* word) {
      void* old = *slot;
      *slot = value;
      refused(gradients(pair.y.data(), s.n), word);
      *slot = old;
    };
    with(&dy.data, nullptr, "grad_output");
    with(&dbeta.data, nullptr, "beta_gradient");
    with(&dgamma.data, pair.dbeta.data(), "overlap");
    with(&dgamma.data, pair.dx[0].data(), "overlap");
    with(&dbeta.data, pair.dy.data(), "overlap");
    with(&dbeta.data, pair.gamma.data(), "overlap");
    with(&dx[0].data, static_cast<float*>(pair.dy.data()) + 1, "overlap");
    with(&dx[0].data, static_cast<float*>(pair.y.data()) + 1, "overlap");
    if (!is_sum) {
      with(&dx[0].data, nullptr, "input_gradient");
      with(&dw.data, pair.dbeta.data(), "overlap");
      with(&db.data, pair.dgamma.data(), "overlap");
      with(&dbeta.data, pair.w.data(), "overlap");
      with(&dbeta.data, pair.x[0].data(), "overlap");
      with(&dw.data, nullptr, "weights_gradient");
      BNNSNDArrayDescriptor* parameters[] = {&dw, &db, &dbeta, &dgamma};
      refused(BNNSFusedFilterApplyBackwardBatch(pair.fused, s.n, nullptr, 0, nullptr, 0, pair.y.data(), 0, &dy, 0,
                                                parameters),
              "input");
      refused(BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, s.n, 1, in, nullptr, dx_p, nullptr,
                                                          pair.y.data(), 0, &dy, 0, parameters),
              "arithmetic");
    } else {
      BNNSNDArrayDescriptor* one[] = {&dx[0], nullptr};
      refused(BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, s.n, 2, in, nullptr, one, nullptr, pair.y.data(),
                                                          0, &dy, 0, nullptr),
              "input_gradients");
      refused(BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, s.n, 2, in, nullptr, nullptr, nullptr,
                                                          pair.y.data(), 0, &dy, 0, nullptr),
              "input_gradients");
      refused(BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, s.n, 3, in, nullptr, dx_p, nullptr,
                                                          pair.y.data(), 0, &dy, 0, nullptr),
              "inputs: expected 2");
    }
    CHECK(gradients(pair.y.data(), s.n) == 0, "%s: %s", s.text().c_str(), obn_last_error());
    CHECK(gradients(pair.y.data(), 0) == 0, "no samples: %s", obn_last_error());
    CHECK(BNNSFilterApply(pair.fused, in[0], pair.y.data()) == -1, "it has entry points of its own");
  }
}

TEST(fused_activations_that_cannot_be_differentiated_are_refused) {
  Setup s;
  s.activation = BNNSActivationFunctionGELUApproximation;
  Pair pair(s, 3);
  if (!pair.make_fused()) return;
  CHECK(pair.apply() == 0 && pair.apply(false) == 0, "%s", obn_last_error());
  CHECK(pair.apply_backward() == -1 && obn_last_error()[0], "gelu needs its input");
  // An activation between the layers is for inference.
  s.activation = BNNSActivationFunctionIdentity;
  Pair between(s, 3);
  between.describe();
  between.convolution.activation.function = BNNSActivationFunctionTanh;
  const BNNSFilterType types[] = {BNNSConvolution, BNNSBatchNorm};
  const void* blocks[] = {&between.convolution, &between.norm};
  between.fused = BNNSFilterCreateFusedLayer(2, types, blocks, nullptr);
  CHECK(between.fused && between.apply(false) == 0 && between.apply() == 0, "%s", obn_last_error());
  CHECK(between.apply_backward() == -1 && std::strstr(obn_last_error(), "identity"), "%s", obn_last_error());
}

namespace {

void check_in_place(Setup s) {
  s.first = First::arithmetic;
  s.activation = BNNSActivationFunctionIdentity;
  Pair apart(s, 4), in_place(s, 4);
  if (!apart.make_fused() || !in_place.make_fused()) return;
  CHECK(apart.apply() == 0 && apart.apply_backward() == 0, "%s", obn_last_error());
  const void* in[] = {in_place.x[0].data(), in_place.x[1].data()};
  CHECK(BNNSFusedFilterApplyMultiInputBatch(in_place.fused, s.n, 2, in, nullptr, in_place.x[0].data(), 0, true) == 0,
        "%s", obn_last_error());
  CHECK(in_place.x[0].bytes == apart.y.bytes, "the output in the place of the first input");
  // One gradient in the place of the output's.
  Array kept = in_place.dy;
  BNNSNDArrayDescriptor dy = in_place.dy.with_data(), dx = dy, other = in_place.dx[1].with_data();
  BNNSNDArrayDescriptor* one_p[] = {&dx, &other};
  CHECK(BNNSFusedFilterApplyBackwardMultiInputBatch(in_place.fused, s.n, 2, nullptr, nullptr, one_p, nullptr, nullptr,
                                                    0, &dy, 0, nullptr) == 0,
        "%s", obn_last_error());
  CHECK(in_place.dy.bytes == apart.dx[0].bytes && in_place.dx[1].bytes == apart.dx[1].bytes, "a gradient in place");
  // The other one shared: both inputs receive the sum.
  std::copy(kept.bytes.begin(), kept.bytes.end(), in_place.dy.bytes.begin());
  BNNSNDArrayDescriptor* dx_p[] = {&dx, &dx};
  CHECK(BNNSFusedFilterApplyBackwardMultiInputBatch(in_place.fused, s.n, 2, nullptr, nullptr, dx_p, nullptr, nullptr, 0,
                                                    &dy, 0, nullptr) == 0,
        "%s", obn_last_error());
  for (size_t i = 0; i < apart.dx[0].count(); ++i) {
    const double expected = apart.dx[0].get(i) + apart.dx[1].get(i);
    CHECK(in_place.dy.get(i) == static_cast<double>(static_cast<float>(expected)), "shared gradient at %zu: %g, not %g",
          i, in_place.dy.get(i), expected);
  }
}

}  // namespace

TEST(fused_sums_work_in_place) {
  check_in_place({});
  Setup s;  // channel by channel, past the caches
  s.n = 8;
  s.c = s.o = 12;
  s.h = s.w = 152;
  check_in_place(s);
}

TEST(fused_memory_comes_from_the_caller_and_goes_back) {
  using ::obn::test::Memory;
  std::vector<Setup> setups(std::size(kFirsts));
  for (size_t k = 0; k < setups.size(); ++k) setups[k].first = kFirsts[k];
  setups.push_back(few_channels_setup());
  for (const Setup& s : setups) {
    Pair pair(s, 6);
    const BNNSFilterParameters counted = Memory::start();
    pair.options.alloc_memory = counted.alloc_memory;
    pair.options.free_memory = counted.free_memory;
    if (!pair.make_fused()) continue;
    CHECK(pair.apply() == 0 && pair.apply_backward() == 0, "%s", obn_last_error());
    CHECK(Memory::taken > 0, "memory of the filter comes from the caller");
    const size_t before = Memory::taken;
    for (size_t round = 0; round < 3; ++round)
      CHECK(pair.apply() == 0 && pair.apply_backward() == 0, "%s", obn_last_error());
    CHECK(Memory::taken == before, "warm calls took %zu blocks", Memory::taken - before);
    BNNSFilterDestroy(pair.fused);
    pair.fused = nullptr;
    CHECK(Memory::taken == Memory::returned, "%zu blocks taken, %zu given back", Memory::taken, Memory::returned);
    CHECK(pair.make_fused() && obn_filter_kept_bytes(pair.fused, s.n) > 0 && obn_filter_work_bytes(pair.fused, s.n) > 0,
          "%s", obn_last_error());
  }
}

// Layers that put memory of their own behind it rely on that.
TEST(fused_asks_for_no_more_than_it_says) {
  const auto check = [](const Setup& s) {
    std::thread([&] {  // whose workspace begins with nothing
      Pair pair(s, 4);
      if (!pair.make_fused()) return;
      const std::byte* block = workspace(obn_filter_work_bytes(pair.fused, s.n));
      CHECK(pair.apply() == 0 && pair.apply_backward() == 0 && pair.apply(false) == 0, "%s", obn_last_error());
      CHECK(workspace(1) == block, "%s: more than %zu bytes", s.text().c_str(),
            obn_filter_work_bytes(pair.fused, s.n));
    }).join();
  };
  for (First first : kFirsts) {
    for (BNNSFilterType norm : kNorms) {
      Setup s;
      s.first = first;
      s.norm = norm;
      s.c = s.o;  // two groups
      check(s);
    }
  }
  for (size_t n : {1, 3, 40}) {
    for (size_t size : {1, 2, 3, 9, 30}) {  // depthwise: sums of weights may be more than the image
      Setup s;
      s.n = n;
      s.c = s.o = s.groups = 24;
      s.h = s.w = size;
      check(s);
    }
  }
}

TEST(fused_has_the_winograd_switch) {
  Setup s;
  s.c = s.o = 16;
  s.h = s.w = 12;
  Pair with(s, 8), without(s, 8);
  if (!with.make_fused() || !without.make_fused()) return;
  CHECK(obn_filter_set_winograd(without.fused, 0) == 0, "%s", obn_last_error());
  CHECK(with.apply() == 0 && without.apply() == 0, "%s", obn_last_error());
  CHECK(with.y.bytes != without.y.bytes, "another algorithm, other bits");
}

// Blocks with random changes: created or refused, applied or refused, never more.
TEST(fused_random_parameter_blocks_never_crash) {
  constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutVector,         BNNSDataLayoutImageCHW,
                                         BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutConvolutionWeightsOIHW,
                                         BNNSDataLayout3DFirstMajor,   static_cast<BNNSDataLayout>(0x12345)};
  constexpr BNNSDataType kTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16, BNNSDataTypeInt8,
                                     BNNSDataTypeUInt1, static_cast<BNNSDataType>(0x10000)};
  constexpr size_t kHuge[] = {0, SIZE_MAX, SIZE_MAX / 2 + 1, size_t{1} << 40};
  std::vector<float> memory(1 << 16, 0.5f), x(1 << 16, 0.25f), y(1 << 16), dx(1 << 16);
  Random random{99};
  size_t created = 0, refused = 0;
  for (size_t round = 0; round < 6000; ++round) {
    Setup s;
    s.first = kFirsts[random.below(4)];
    s.norm = kNorms[random.below(4)];
    s.norm_groups = random.below(3);
    s.axis = random.below(4);
    s.has_moving = random.coin();
    s.client = random.coin();
    if (s.first == First::arithmetic) s.c = s.o;
    Pair pair(s, round);
    pair.describe();
    BNNSLayerParametersQuantization quantization = {};
    quantization.axis_mask = random.below(10);
    quantization.i_desc = pair.norm.i_desc;
    quantization.o_desc = pair.norm.o_desc;
    quantization.o_desc.data_type = BNNSDataTypeInt8;
    const bool quantizes = random.below(4) == 0;
    BNNSNDArrayDescriptor* all[] = {&pair.convolution.i_desc, &pair.convolution.o_desc, &pair.convolution.w_desc,
                                    &pair.convolution.bias, &pair.fully_connected.i_desc, &pair.fully_connected.o_desc,
                                    &pair.fully_connected.w_desc, &pair.fully_connected.bias, &pair.binary.in1,
                                    &pair.binary.in2, &pair.binary.out, &pair.norm.i_desc, &pair.norm.o_desc,
                                    &pair.norm.beta_desc, &pair.norm.gamma_desc, &pair.norm.moving_mean_desc,
                                    &pair.norm.moving_variance_desc, &quantization.i_desc, &quantization.o_desc};
    for (size_t k = 0; k < std::size(all); ++k)
      if (all[k]->data) all[k]->data = memory.data() + 3000 * k;
    for (size_t changes = random.below(3); changes > 0; --changes) {
      BNNSNDArrayDescriptor& d = *all[random.below(std::size(all))];
      switch (random.below(6)) {
        case 0: d.layout = kLayouts[random.below(6)]; break;
        case 1: d.data_type = kTypes[random.below(6)]; break;
        case 2: d.size[random.below(4)] = random.below(7); break;
        case 3: d.stride[random.below(4)] = random.below(9); break;
        case 4: d.size[random.below(3)] = kHuge[random.below(4)]; break;
        default: if (d.data) d.data = random.coin() ? nullptr : reinterpret_cast<char*>(d.data) + random.below(4);
      }
    }
    pair.norm.activation.function = static_cast<BNNSActivationFunction>(random.below(38));
    pair.convolution.x_stride = random.below(4);
    pair.convolution.groups = random.below(3);
    const BNNSFilterType types[] = {pair.first_type(), quantizes ? BNNSQuantization : s.norm};
    const void* blocks[] = {pair.first_block(), quantizes ? static_cast<const void*>(&quantization) : &pair.norm};
    obn_clear_error();
    pair.fused = BNNSFilterCreateFusedLayer(2, types, blocks, &pair.options);
    if (!pair.fused) {
      CHECK(obn_last_error()[0], "refused without a sentence");
      ++refused;
      continue;
    }
    ++created;
    const size_t n = random.between(1, 3), stride[] = {random.below(400), random.below(400)};
    const void* in[] = {x.data(), x.data()};
    BNNSFusedFilterApplyBatch(pair.fused, n, x.data(), stride[0], y.data(), stride[1], random.coin());
    BNNSFusedFilterApplyMultiInputBatch(pair.fused, n, 2, in, stride, y.data(), stride[1], random.coin());
    BNNSNDArrayDescriptor d[] = {*all[random.below(std::size(all))], *all[random.below(std::size(all))]};
    BNNSNDArrayDescriptor dy = pair.norm.o_desc, dbeta = pair.norm.beta_desc, dgamma = pair.norm.gamma_desc;
    BNNSNDArrayDescriptor *parameters[] = {&d[0], &d[1], &dbeta, &dgamma}, *dx_p[] = {&d[0], &d[1]};
    dy.data = x.data();
    for (BNNSNDArrayDescriptor* p : {&d[0], &d[1], &dbeta, &dgamma}) p->data = dx.data() + random.below(1 << 15);
    BNNSFusedFilterApplyBackwardBatch(pair.fused, n, x.data(), stride[0], &d[0], stride[1], y.data(), stride[1], &dy,
                                      stride[0], parameters);
    BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, n, 2, in, stride, dx_p, stride, y.data(), stride[1], &dy,
                                                stride[0], parameters);
    obn_filter_work_bytes(pair.fused, n);
    obn_filter_kept_bytes(pair.fused, n);
  }
  CHECK(created > 500 && refused > 1000, "%zu created, %zu refused", created, refused);
}

}  // namespace obn::fused
