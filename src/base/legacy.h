// The descriptions of the first interface as arrays.
#pragma once

#include "openbnns/bnns/legacy.h"

namespace obn {

inline BNNSNDArrayDescriptor describe(const BNNSVectorDescriptor& vector) {
  BNNSNDArrayDescriptor descriptor = {};
  descriptor.layout = BNNSDataLayoutVector;
  descriptor.size[0] = vector.size;
  descriptor.data_type = vector.data_type;
  descriptor.data_scale = vector.data_scale;
  descriptor.data_bias = vector.data_bias;
  return descriptor;
}

// Unlike arrays, stacks never overlap themselves, not even when they are only read: read_view them with Access::write.
inline BNNSNDArrayDescriptor describe(const BNNSImageStackDescriptor& stack) {
  BNNSNDArrayDescriptor descriptor = {};
  descriptor.layout = BNNSDataLayoutImageCHW;
  descriptor.size[0] = stack.width;
  descriptor.size[1] = stack.height;
  descriptor.size[2] = stack.channels;
  descriptor.stride[1] = stack.row_stride;
  descriptor.stride[2] = stack.image_stride;
  descriptor.data_type = stack.data_type;
  descriptor.data_scale = stack.data_scale;
  descriptor.data_bias = stack.data_bias;
  return descriptor;
}

// Without its sizes. Tables of the first interface always have 256 entries of float32.
inline BNNSNDArrayDescriptor describe(const BNNSLayerData& data, BNNSDataLayout layout) {
  BNNSNDArrayDescriptor descriptor = {};
  descriptor.layout = layout;
  descriptor.data = const_cast<void*>(data.data);
  descriptor.data_type = data.data_type;
  descriptor.data_scale = data.data_scale;
  descriptor.data_bias = data.data_bias;
  descriptor.table_data = const_cast<float*>(data.data_table);
  descriptor.table_data_type = BNNSDataTypeFloat32;
  return descriptor;
}

}  // namespace obn
