// SPDX-License-Identifier: Apache-2.0

// The connection to the warden of one worker: listens on the worker's socket, accepts one peer that
// has the worker's uid, and exchanges frames (wire/cell_frame.h) with it.
//
// What the warden sends is hostile: only whole frames with the right magic and version reach the
// owner, no descriptor is ever accepted, and anything else is reported as the link being broken.
// Whether a frame fits the state of the worker is checked by the owner. Belongs to the loop's
// thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "loop/loop.h"
#include "wire/cell_frame.h"
#include "wire/fd.h"

namespace hutch {

class WardenLink {
 public:
  class Owner {
   public:
    // May call anything of the link, and may destroy it. An Error that it throws breaks the link.
    virtual void OnFrame(const FrameHeader& header, std::string_view payload) = 0;
    // The link is of no more use. Never called from within Send().
    virtual void OnLinkBroken(const std::string& why) = 0;

   protected:
    ~Owner() = default;
  };

  // `loop` and `owner` outlive it.
  WardenLink(Loop& loop, Owner& owner);
  ~WardenLink();
  WardenLink(const WardenLink&) = delete;
  WardenLink& operator=(const WardenLink&) = delete;

  // Listens at `path` for a peer with the uid `peer_uid`; others are dropped. Once. Throws
  // kInternal.
  void Listen(const std::string& path, unsigned peer_uid);
  void StopListening();  // and removes the socket, so that nobody else finds it
  void StopReading();    // No frame and no OnLinkBroken() follows.
  void Close();

  bool connected() const { return static_cast<bool>(warden_); }
  // False: nothing was sent, because no warden is connected, or no descriptor can be sent now, or
  // the warden does not read (OnLinkBroken() follows then). Throws kInternal.
  bool Send(const FrameHeader& header, std::string_view payload = {},
            std::span<const int> descriptors = {});
  // Whether the warden has much left to read: then what can wait should.
  bool IsCrowded() const;

 private:
  void OnAccept();
  void OnReadable();

  Loop& loop_;
  Owner& owner_;
  std::string path_;
  unsigned peer_uid_ = ~0u;
  Fd listener_;
  Fd warden_;
  bool stopped_ = false;  // nothing is read any more
  std::shared_ptr<bool> alive_;
};

}  // namespace hutch
