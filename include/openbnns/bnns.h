/* The complete C interface of BNNS: layer filters, direct functions, optimizers, random numbers,
 * nearest neighbours and the graph calls. One header per family; each may also be included
 * alone. */
#ifndef OPENBNNS_BNNS_H
#define OPENBNNS_BNNS_H

#include "bnns/base.h"
#include "bnns/activation.h"
#include "bnns/pooling.h"
#include "bnns/convolution.h"
#include "bnns/fully_connected.h"
#include "bnns/loss.h"
#include "bnns/normalization.h"
#include "bnns/arithmetic.h"
#include "bnns/fused.h"
#include "bnns/matmul.h"
#include "bnns/attention.h"
#include "bnns/lstm.h"
#include "bnns/optimizer.h"
#include "bnns/embedding.h"
#include "bnns/dropout.h"
#include "bnns/reshape.h"
#include "bnns/reduction.h"
#include "bnns/gather.h"
#include "bnns/quantization.h"
#include "bnns/random.h"
#include "bnns/neighbors.h"
#include "bnns/legacy.h"
#include "bnns/graph.h"

#endif
