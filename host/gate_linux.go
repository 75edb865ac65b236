package host

import (
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A gate is a descriptor for which its threads wait themselves. The runtime's poller is good at thousands of descriptors
// that seldom have something. One that always has costs it a second thread's wake-up each time, and the thread that reads
// several system calls before it sleeps; here it is one poll(2), from which the kernel wakes the reader directly.
//
// While it waits, a thread keeps its place in the scheduler (GOMAXPROCS) for some milliseconds, in which goroutines may
// be without one: see MakePlaces. The scheduler is not told of these waits, if there are places: it would take a place from a thread that
// it sees wait, hand it to another, and look for more to take 50,000 times a second, which was a tenth of what a node did that carried 60 Mbit/s.
type gate struct {
	fd, event int // what is waited for, and an eventfd that ends the waiting
	mu        sync.RWMutex
	closed    atomic.Bool
}

// places is how many threads may wait without being in anybody's way. More that wait for long lose their place anyway.
const places = 8

// MakePlaces gives the scheduler places for threads that wait for descriptors themselves, beside one for each processor.
// Who has set GOMAXPROCS knows better.
func MakePlaces() {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	if want := runtime.NumCPU() + places; runtime.GOMAXPROCS(0) < want {
		runtime.GOMAXPROCS(want)
	}
	vacant.made.Do(func() { vacant.n.Store(places) })
}

// vacant is how many of the places that were made no thread waits in.
var vacant struct {
	made sync.Once
	n    atomic.Int32
}

// sit takes a place, for stand to give back; false: there is none.
func sit() bool {
	if vacant.n.Add(-1) >= 0 {
		return true
	}
	stand()
	return false
}

func stand() { vacant.n.Add(1) }

func newGate(fd int) (*gate, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &gate{fd: fd, event: event}, nil
}

// LetOthers gives other threads their turn. The runtime's own way would wake another thread to look for work.
func LetOthers() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Doze sleeps for so short a time that the runtime's scheduler need not know: to tell it costs more than to sleep. A signal ends it.
func Doze(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// until calls f, which must not block, until it is true, and waits for events (POLLIN, POLLOUT) between.
func (g *gate) until(events int16, f func(fd uintptr) bool) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for !g.closed.Load() {
		if f(uintptr(g.fd)) {
			return nil
		}
		if _, err := g.wait(events, forever); err != nil {
			return err
		}
	}
	return net.ErrClosed
}

const (
	// forever is a wait without an end.
	forever time.Duration = -1
	// nap is for how long a thread sleeps at once that had something lately, and makes way for others between: so it keeps its place in
	// the scheduler, from which runtime.sysmon would take it after 10 ms, to sleep then itself. Without a place the next packet has to wake
	// sysmon, too, and finds a place on which nothing has run for long: sysmon takes that for a goroutine that does not make way, and has
	// it continue on another thread. All that was a third of the time of an echo each 10 ms.
	nap = 8 * time.Millisecond
	// lately is 0.2 s, after which a thread sleeps soundly: longer than the pauses of who plays, types or loads a page.
	lately = 200 * time.Millisecond
)

// wait waits for events, as long as most or forever, and tells whether it was woken instead. The lock is held for reading.
func (g *gate) wait(events int16, most time.Duration) (woken bool, err error) {
	slept := time.Duration(0)
	for slept < lately && (most == forever || slept < most) {
		short := nap
		if most != forever {
			short = min(nap, most-slept)
		}
		if ended, woken, err := g.poll(events, short); ended {
			return woken, err
		}
		slept += short
		runtime.Gosched()
	}
	if most != forever {
		if most -= slept; most <= 0 && slept > 0 {
			return false, nil
		}
	}
	_, woken, err = g.poll(events, most)
	return woken, err
}

// poll is one wait. It tells whether something ended it before its time, and whether that was to be woken.
func (g *gate) poll(events int16, most time.Duration) (ended, woken bool, err error) {
	fds := [2]unix.PollFd{{Fd: int32(g.fd), Events: events}, {Fd: int32(g.event), Events: unix.POLLIN}}
	var end *unix.Timespec
	if most >= 0 {
		t := unix.NsecToTimespec(int64(most))
		end = &t
	}
	// ppoll(2), since poll(2) counts in milliseconds. A signal ends it, too: so does the scheduler's, when it wants the world to stop.
	var n int
	var errno unix.Errno
	if most >= 0 && most <= nap && sit() {
		r, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(end)), 0, 0, 0)
		stand()
		n, errno = int(r), e
	} else {
		r, _, e := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(end)), 0, 0, 0)
		n, errno = int(r), e
	}
	switch {
	case errno == unix.EINTR:
		return true, false, nil
	case errno != 0:
		return true, false, errno
	}
	return n > 0, fds[1].Revents != 0, nil
}

// wake ends a wait, this one's or the next's, until it is told to rest.
func (g *gate) wake() {
	one := [8]byte{1}
	_, _ = unix.Write(g.event, one[:])
}

func (g *gate) rest() {
	var n [8]byte
	_, _ = unix.Read(g.event, n[:])
}

// close wakes all and closes the descriptor when they have left it.
func (g *gate) close() error {
	if g.closed.Swap(true) {
		return net.ErrClosed
	}
	g.wake()
	g.mu.Lock()
	defer g.mu.Unlock()
	unix.Close(g.event)
	return unix.Close(g.fd)
}

// The methods of syscall.RawConn.

// Control calls f with the descriptor.
func (g *gate) Control(f func(fd uintptr)) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed.Load() {
		return net.ErrClosed
	}
	f(uintptr(g.fd))
	return nil
}

// Read calls f until it has read.
func (g *gate) Read(f func(fd uintptr) bool) error { return g.until(unix.POLLIN, f) }

// Write calls f until it has written.
func (g *gate) Write(f func(fd uintptr) bool) error { return g.until(unix.POLLOUT, f) }

var _ syscall.RawConn = (*gate)(nil)
