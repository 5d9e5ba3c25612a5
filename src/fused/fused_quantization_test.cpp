// Fused layers that end with a quantizer: against the two layers called one after the other.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "fused/fused_test.h"

namespace obn::fused {

using namespace test;

namespace {

// A first layer before a quantizer, and the two one after the other.
void check_quantized(First first, BNNSDataType joint, BNNSQuantizerFunction function, BNNSDataType y_type,
                     size_t axis_mask, size_t n, bool client) {
  Setup s;
  s.first = first;
  s.n = n;
  s.h = 9;
  s.w = 7;
  s.joint_type = joint;
  s.type = joint == BNNSDataTypeFloat16 ? joint : BNNSDataTypeFloat32;
  s.client = client;
  Pair pair(s, 11);
  pair.describe();
  Array y(y_type, s.layout(), n, s.out_size()), expected = y;
  const std::vector<size_t> size = s.out_size();
  size_t length = n;
  for (size_t k = 0; k < size.size(); ++k)
    if (axis_mask == size_t{1} << k) length = size[k];
  Array scale(BNNSDataTypeFloat32, BNNSDataLayoutVector, 1, {length}), offset = scale;
  Random random{n};
  scale.fill(random, 20.0, 5.0);
  offset.fill(random, 1.0, 3.0);
  BNNSLayerParametersQuantization block = {};
  block.axis_mask = axis_mask;
  block.function = function;
  block.i_desc = pair.z.descriptor;
  block.o_desc = y.descriptor;
  block.i_desc.data = &block;  // ignored
  if (axis_mask) {
    block.scale = scale.with_data();
    block.bias = offset.with_data();
  }
  const BNNSFilterType types[] = {pair.first_type(), BNNSQuantization};
  const void* blocks[] = {pair.first_block(), &block};
  BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, &pair.options);
  CHECK(filter, "%s: %s", s.text().c_str(), obn_last_error());
  pair.first = s.is_vector() ? BNNSFilterCreateLayerFullyConnected(&pair.fully_connected, &pair.options)
               : first == First::convolution
                   ? BNNSFilterCreateLayerConvolution(&pair.convolution, &pair.options)
                   : BNNSFilterCreateLayerTransposedConvolution(&pair.convolution, &pair.options);
  if (!filter || !pair.first) return;
  block.i_desc.data = pair.z.data();
  block.o_desc.data = expected.data();
  CHECK(BNNSFilterApplyBatch(pair.first, n, pair.x[0].data(), 0, pair.z.data(), 0) == 0 &&
            BNNSDirectApplyQuantizer(&block, nullptr, n, 0, 0) == 0,
        "%s", obn_last_error());
  if (axis_mask && !client) std::fill(scale.bytes.begin(), scale.bytes.end(), std::byte{0});  // it was copied
  for (bool training : {false, true}) {
    y.bytes.assign(y.bytes.size(), std::byte{0x3c});
    CHECK(BNNSFusedFilterApplyBatch(filter, n, pair.x[0].data(), 0, y.data(), 0, training) == 0, "%s",
          obn_last_error());
    CHECK(y.bytes == expected.bytes, "%s: quantized to %x along %zx", s.text().c_str(), static_cast<unsigned>(y_type),
          axis_mask);
  }
  const size_t rank = size.size();
  if (axis_mask == size_t{1} << rank)
    CHECK(BNNSFusedFilterApplyBatch(filter, n + 1, pair.x[0].data(), 0, y.data(), 0, false) == -1, "another batch");
  BNNSNDArrayDescriptor d = y.with_data();
  CHECK(BNNSFusedFilterApplyBackwardBatch(filter, n, nullptr, 0, nullptr, 0, nullptr, 0, &d, 0, nullptr) == -1 &&
            std::strstr(obn_last_error(), "quantization"),
        "%s", obn_last_error());
  BNNSFilterDestroy(filter);
}

}  // namespace

TEST(fused_quantization_equals_the_two_layers) {
  for (First first : {First::convolution, First::transposed, First::fully_connected}) {
    const size_t batch_bit = first == First::fully_connected ? 2 : 8;
    for (BNNSDataType joint : {BNNSDataTypeFloat32, BNNSDataTypeFloat16})
      for (BNNSDataType y : {BNNSDataTypeInt8, BNNSDataTypeUInt8, BNNSDataTypeInt16, BNNSDataTypeInt32})
        for (size_t mask : {size_t{0}, size_t{1}, batch_bit})
          for (bool client : {false, true})
            check_quantized(first, joint, BNNSQuantizerFunctionQuantize, y, mask, 5, client);
  }
  for (BNNSDataType joint : {BNNSDataTypeInt8, BNNSDataTypeUInt8})  // the convolution itself gives integers
    check_quantized(First::convolution, joint, BNNSQuantizerFunctionDequantize, BNNSDataTypeFloat32, 4, 3, false);
}

// Enough samples that z is made in parts.
TEST(fused_quantization_of_many_samples) {
  constexpr size_t n = 70, c = 2, o = 8, side = 62;
  Array x(BNNSDataTypeFloat32, BNNSDataLayoutImageCHW, n, {side, side, c});
  Array z(BNNSDataTypeFloat32, BNNSDataLayoutImageCHW, n, {side, side, o});
  Array y(BNNSDataTypeInt8, BNNSDataLayoutImageCHW, n, {side, side, o}), expected = y;
  Array w(BNNSDataTypeFloat32, BNNSDataLayoutConvolutionWeightsOIHW, 1, {3, 3, c, o});
  Array scale(BNNSDataTypeFloat32, BNNSDataLayoutVector, 1, {n});
  Random random{1};
  x.fill(random);
  w.fill(random);
  scale.fill(random, 20.0, 10.0);
  BNNSLayerParametersConvolution convolution = {};
  convolution.i_desc = x.descriptor;
  convolution.o_desc = z.descriptor;
  convolution.w_desc = w.with_data();
  convolution.x_padding = convolution.y_padding = 1;
  BNNSLayerParametersQuantization block = {};
  block.axis_mask = 8;
  block.i_desc = z.descriptor;
  block.o_desc = y.descriptor;
  block.scale = scale.with_data();
  const BNNSFilterType types[] = {BNNSConvolution, BNNSQuantization};
  const void* blocks[] = {&convolution, &block};
  BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, nullptr);
  BNNSFilter first = BNNSFilterCreateLayerConvolution(&convolution, nullptr);
  block.i_desc.data = z.data();
  block.o_desc.data = expected.data();
  CHECK(BNNSFilterApplyBatch(first, n, x.data(), 0, z.data(), 0) == 0 &&
            BNNSDirectApplyQuantizer(&block, nullptr, n, 0, 0) == 0 &&
            BNNSFusedFilterApplyBatch(filter, n, x.data(), 0, y.data(), 0, false) == 0,
        "%s", obn_last_error());
  CHECK(y.bytes == expected.bytes, "parts of a batch are quantized like all of it");
  CHECK(obn_filter_work_bytes(filter, n) < z.bytes.size(), "z is held in parts: %zu bytes",
        obn_filter_work_bytes(filter, n));
  BNNSFilterDestroy(filter);
  BNNSFilterDestroy(first);
}

}  // namespace obn::fused
