//go:build !linux

package netns

import (
	"errors"
	"time"
)

// Packets is what Linux has.
type Packets struct{}

var errPackets = errors.New("packets of an interface are seen on Linux only")

func (h *Host) OpenPackets(device string) (*Packets, error) { return nil, errPackets }
func (h *Host) OpenHeads(device string) (*Packets, error)   { return nil, errPackets }

func (p *Packets) Close() error                        { return errPackets }
func (p *Packets) Write([]byte) error                  { return errPackets }
func (p *Packets) Heads(func([]byte, int)) error       { return errPackets }
func (p *Packets) Read([]byte, time.Time) (int, error) { return 0, errPackets }
