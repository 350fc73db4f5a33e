// The precompiled header: includes that almost every test needs.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/base/precompiled.h"
