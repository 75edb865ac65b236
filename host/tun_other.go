//go:build !linux

package host

import "time"

// TUN is an interface whose packets come to this process.
type TUN struct{}

// OpenTUN makes one.
func OpenTUN(string, int) (*TUN, error) { return nil, ErrNotSupported }

func (*TUN) Name() string          { return "" }
func (*TUN) Queues() []*TUNQueue   { return nil }
func (*TUN) Offloads() TUNOffloads { return TUNOffloads{} }
func (*TUN) Close() error          { return ErrNotSupported }

// TUNQueue is one of its queues.
type TUNQueue struct{}

func (*TUNQueue) Await(time.Duration) error   { return ErrNotSupported }
func (*TUNQueue) TryRead([]byte) (int, error) { return 0, ErrNotSupported }
func (*TUNQueue) Write([]byte) error          { return ErrNotSupported }
func (*TUNQueue) Wake()                       {}

// LetOthers does nothing here.
func LetOthers() {}

// Doze sleeps, as everybody does here.
func Doze(d time.Duration) { time.Sleep(d) }

func SetLinkMTU(string, int) error      { return ErrNotSupported }
func SetLinkSegments(string, int) error { return ErrNotSupported }
