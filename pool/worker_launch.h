// SPDX-License-Identifier: Apache-2.0

// Names, uids and files of a worker that is about to be started.
//
// The directory of a worker on the host holds its socket, its modules and its setup; the container
// sees it at kWorkerSocketDir. NextWorkerUid() and NewLaunch() may be called on any thread, the
// others write files and belong to whoever owns the worker.
#pragma once

#include <map>
#include <string>

#include "pool/confinement.h"
#include "wire/paths.h"

namespace hutch {

using Modules = std::map<std::string, std::string>;  // relative path to content

// Worker uids in turn, so that two workers alive never share one.
unsigned NextWorkerUid();

// The launch of one more worker, with a name that contains `tag`, and with no packages.
WorkerLaunch NewLaunch(const Paths& paths, const std::string& generation, unsigned uid,
                       const std::string& base_id, const std::string& runtime_id,
                       const std::string& tag);

// These throw Error or a std::filesystem error. A path of `modules` that leaves the directory is
// kInvalidArgument.
void MakeWorkerDirectory(const WorkerLaunch& launch, const Modules& modules);
void WriteModules(const WorkerLaunch& launch, const Modules& modules);
void WriteSetup(const WorkerLaunch& launch, const std::string& setup);

}  // namespace hutch
