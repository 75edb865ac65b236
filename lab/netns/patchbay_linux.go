package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/lab/router"
)

const (
	// readBurst is how many frames one device gives before the others have their turn.
	readBurst = 64
	// quantum is the least time between two wake-ups. One costs as much as ten frames do, on virtual machines more, and
	// frames of 300 Mbit/s come every 40 us. Where frames are as dense as that it makes one late by once as much when it
	// comes, and once when it leaves; where they are seldom, by nothing.
	quantum = 100 * time.Microsecond
	// patchbayPriority is above that of programs which are run in real time themselves, with the least priority that does it
	// (chrt -r 1), so that a benchmark on a busy machine is one of them and not of the machine's other work.
	patchbayPriority = 10
	// awake is for how long a patchbay that had something to do waits without telling Go's scheduler. Telling it costs more than
	// the wait: the runtime's monitor, which takes processors away from whoever waits for longer than 20 us, then looks for them
	// 50,000 times a second, and takes most of a real processor for that.
	awake = 2 * time.Millisecond
	// frameRoom is what a frame read from a device may take: 1500 bytes, Ethernet's header and a VLAN tag, and
	// room to see that one is larger.
	frameRoom = 2048
)

// inLaboratory reports whether the calling thread is in a network namespace that has a name, as ip(8) and the labs of
// this package give them. The machine's own has none, and neither has that of a container or a login.
func inLaboratory() bool {
	here, ok := identify("/proc/thread-self/ns/net")
	if machine, known := identify("/proc/1/ns/net"); !ok || known && here == machine {
		return false
	}
	names, _ := os.ReadDir(runDir) // no directory, no names
	for _, n := range names {
		if id, ok := identify(filepath.Join(runDir, n.Name())); ok && id == here {
			return true
		}
	}
	return false
}

// openTAP makes a TAP device in the namespace that the calling thread is in. It lives as long as the descriptor.
// In the machine's own namespace it makes none.
func openTAP(name string) (fd int, err error) {
	if !inLaboratory() {
		return -1, fmt.Errorf("making the device %s: this is the machine's own network namespace, where a laboratory has no business: use ip netns exec", name)
	}
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("making the device %s: %w", name, err)
	}
	return fd, nil
}

func closeTAP(fd int) { unix.Close(fd) }

// carrierTAP says whether a cable is in the device.
func carrierTAP(fd int, up bool) error {
	state := 0
	if up {
		state = 1
	}
	return unix.IoctlSetPointerInt(fd, unix.TUNSETCARRIER, state)
}

// writeTAP writes a frame. A device whose other side is down or full loses it, as cables do.
func writeTAP(fd int, frame []byte) { unix.Write(fd, frame) }

// A patchbay runs the routers and cables of a lab between their devices, in one thread of its own that is woken
// by frames, by deadlines (to the microsecond, which Go's timers do not offer) and by [patchbay.do].
type patchbay struct {
	wake int // eventfd
	done chan struct{}

	mu     sync.Mutex
	jobs   []func()
	closed bool

	plugged []plugged // of the loop alone, as all below
	polled  []unix.PollFd
	idle    bool // nothing has happened for awake
	buf     [frameRoom]byte
}

type plugged struct {
	station station
	fds     [2]int // by router.Leg
}

func newPatchbay() (*patchbay, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("making a patchbay: %w", err)
	}
	b := &patchbay{wake: wake, done: make(chan struct{})}
	processors(1) // for its own thread
	go b.run()
	return b, nil
}

// do runs f in the loop, to which all routers and cables belong, and waits for it.
func (b *patchbay) do(f func()) error {
	ran := make(chan struct{})
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return errors.New("the lab is closed")
	}
	b.jobs = append(b.jobs, func() { f(); close(ran) })
	unix.Write(b.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	b.mu.Unlock()
	<-ran
	return nil
}

// add runs a station between two devices, whose descriptors are the patchbay's from now on.
func (b *patchbay) add(s station, fds [2]int) error {
	err := b.do(func() {
		b.plugged = append(b.plugged, plugged{s, fds})
		b.listPolled()
	})
	if err != nil {
		closeTAP(fds[0])
		closeTAP(fds[1])
	}
	return err
}

// remove takes a station out, and its devices with it.
func (b *patchbay) remove(s station) error {
	return b.do(func() {
		b.plugged = slices.DeleteFunc(b.plugged, func(p plugged) bool {
			if p.station == s {
				closeTAP(p.fds[0])
				closeTAP(p.fds[1])
			}
			return p.station == s
		})
		b.listPolled()
	})
}

// close takes everything out and ends the thread.
func (b *patchbay) close() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		unix.Write(b.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	b.mu.Unlock()
	<-b.done
}

func (b *patchbay) listPolled() {
	b.polled = append(b.polled[:0], unix.PollFd{Fd: int32(b.wake), Events: unix.POLLIN})
	for _, p := range b.plugged {
		for _, fd := range p.fds {
			b.polled = append(b.polled, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
}

func (b *patchbay) run() {
	runtime.LockOSThread() // for good: the thread ends with this goroutine
	defer close(b.done)
	defer processors(-1)
	// Without the 50 us by which the kernel may round a thread's timers, and before all ordinary threads, for it plays
	// hardware: an ordinary one waits for up to 3 ms for another's slice to end. It takes some microseconds per packet,
	// and the kernel leaves 5 % of the time to others in any case (sched(7)). Both are for accuracy; where they are
	// not permitted the patchbay is less accurate.
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: patchbayPriority, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0)
	b.listPolled()
	for woke := time.Now(); ; {
		if b.polled[0].Revents != 0 && b.runJobs() {
			return
		}
		now := time.Now()
		if early := quantum - now.Sub(woke); early > 0 {
			b.poll(now)
			doze(early)
			now = time.Now()
		}
		b.wait(b.poll(now))
		woke = time.Now()
		for i := 1; i < len(b.polled); i++ {
			if b.polled[i].Revents != 0 {
				b.read(&b.plugged[(i-1)/2], (i-1)%2)
			}
		}
	}
}

// doze sleeps, whatever comes, for so short a time that the scheduler need not know.
func doze(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0) // interrupted: all the sooner
}

// processors lets Go's scheduler run so many more threads at once.
func processors(more int) {
	scheduler.Lock()
	defer scheduler.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + more)
}

var scheduler sync.Mutex

// poll lets every station do what is due, and says when the next one wants to.
func (b *patchbay) poll(now time.Time) (next time.Time) {
	for i := range b.plugged {
		if at := b.plugged[i].station.Poll(now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// wait sleeps until a frame, a job or the deadline comes, or somewhat shorter.
func (b *patchbay) wait(until time.Time) {
	for i := range b.polled {
		b.polled[i].Revents = 0
	}
	var timeout *unix.Timespec
	left := awake
	if !until.IsZero() {
		left = max(0, time.Until(until))
		t := unix.NsecToTimespec(int64(left))
		timeout = &t
	}
	if b.idle {
		n, _ := unix.Ppoll(b.polled, timeout, nil) // interrupted: looked at again
		b.idle = n == 0 && left > awake
		return
	}
	t := unix.NsecToTimespec(int64(min(left, awake)))
	n, _, _ := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&b.polled[0])), uintptr(len(b.polled)), uintptr(unsafe.Pointer(&t)), 0, 0, 0)
	b.idle = n == 0 && left >= awake
}

// read takes what one device has.
func (b *patchbay) read(p *plugged, leg int) {
	now := time.Now()
	for range readBurst {
		n, err := unix.Read(p.fds[leg], b.buf[:])
		if err != nil {
			return // nothing more for now
		}
		p.station.Handle(now, router.Leg(leg), b.buf[:n])
	}
}

// runJobs does what others asked for, and reports whether the patchbay is closed, which it then is.
func (b *patchbay) runJobs() (closed bool) {
	var count [8]byte
	unix.Read(b.wake, count[:])
	b.mu.Lock()
	jobs := b.jobs
	b.jobs = nil
	closed = b.closed
	b.mu.Unlock()
	for _, job := range jobs {
		job()
	}
	if closed {
		for _, p := range b.plugged {
			closeTAP(p.fds[0])
			closeTAP(p.fds[1])
		}
		unix.Close(b.wake)
	}
	return closed
}
