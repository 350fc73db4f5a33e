// Precompiled: what almost every test reads.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/base/precompiled.h"
