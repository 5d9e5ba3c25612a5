// What a pooling layer and a fused layer that ends in a pooling share: the description as Python gives it.
#pragma once

#include "array.h"

namespace obn::door {

// The tuple of pooling.describe (openbnns/pooling.py): function, (kh, kw), (sh, sw), (dh, dw), (up, down, left, right),
// activation. *layer is without i_desc, o_desc and bias. False with an exception.
bool parse_pooling(FilterObject* filter, PyObject* tuple, BNNSLayerParametersPooling* layer);

}  // namespace obn::door
