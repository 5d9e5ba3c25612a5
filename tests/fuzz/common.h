// What the families share: the generic calls on a filter of one input.
#pragma once

#include <algorithm>
#include <cstddef>

#include "world.h"

namespace fuzz {

struct Layer {
  BNNSNDArrayDescriptor x, y;
  const BNNSNDArrayDescriptor* weights = nullptr;  // NULL: it has none
  const BNNSNDArrayDescriptor* bias = nullptr;
  size_t reduction = 1;  // products per result, about
};
size_t work_of(const Layer& layer, size_t batch);

// Apply and backward by the calls that serve any filter.
void run_generic(World& w, BNNSFilter filter, const Layer& layer);

}  // namespace fuzz
