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
	// frames of 300 Mbit/s come every 40 us. Where frames are as dense as that it makes one late by up to as much when it
	// comes, and by up to half as much, or early, when it leaves; where they are seldom, by nothing.
	quantum = 200 * time.Microsecond
	// patchbayPriority is above that of programs which are run in real time themselves, with the least priority that does it
	// (chrt -r 1), so that a benchmark on a busy machine is one of them and not of the machine's other work.
	patchbayPriority = 10
	// awake is for how long a patchbay that had something to do waits without telling Go's scheduler. Telling it costs more than
	// the wait: the runtime's monitor, which takes processors away from whoever waits for longer than 20 us, then looks for them
	// 50,000 times a second, and takes most of a real processor for that.
	awake = 2 * time.Millisecond
	// passingOn is for how long a device that was closed may live on: a program that is being started has all descriptors of this one, until it
	// is executed, and a device lives as long as its last. It takes a millisecond, on a busy machine a few dozen.
	passingOn = time.Second
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
// In the machine's own namespace it makes none. One of the name that was just closed is waited for.
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
		for began := time.Now(); err == unix.EBUSY && time.Since(began) < passingOn; time.Sleep(time.Millisecond) {
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		}
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

// A patchbay is a lab's part of the loop that runs the routers and cables of all labs of this process between their devices.
type patchbay struct {
	loop   *loop
	mu     sync.Mutex
	closed bool
}

// A loop is one thread that is woken by frames, by deadlines (to the microsecond, which Go's timers do not offer) and by
// [loop.do]. One for all labs: what it costs are its wake-ups.
type loop struct {
	wake, epoll int // descriptors
	done        chan struct{}

	mu     sync.Mutex
	jobs   []func()
	closed bool

	plugged []*plugged // of the thread alone, as all below
	byFD    map[int32]end
	ready   [readyMost]unix.EpollEvent
	idle    bool // nothing has happened for awake
	buf     [frameRoom]byte
}

// readyMost is how many devices are looked at after one wake-up, before the others have their turn.
const readyMost = 64

type plugged struct {
	owner   *patchbay
	station station
	fds     [2]int    // by router.Leg
	next    time.Time // when it wants to be polled; zero: never
	asked   bool      // since then something has happened to it, and it may want to be earlier
}

// An end is one of a station's devices.
type end struct {
	*plugged
	leg router.Leg
}

// loops is the process's loop, while there is any lab that needs one.
var loops struct {
	sync.Mutex
	running *loop
	users   int
}

func newPatchbay() (*patchbay, error) {
	loops.Lock()
	defer loops.Unlock()
	if loops.running == nil {
		l, err := newLoop()
		if err != nil {
			return nil, fmt.Errorf("making a patchbay: %w", err)
		}
		loops.running = l
	}
	loops.users++
	return &patchbay{loop: loops.running}, nil
}

func newLoop() (*loop, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	l := &loop{wake: wake, done: make(chan struct{}), byFD: map[int32]end{}}
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		if err = l.listen(wake); err != nil {
			unix.Close(l.epoll)
		}
	}
	if err != nil {
		unix.Close(wake)
		return nil, err
	}
	processors(1) // for its own thread
	go l.run()
	return l, nil
}

// listen has the loop woken by what a descriptor has to read.
func (l *loop) listen(fd int) error {
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// do runs f in the loop, to which all routers and cables belong, and waits for it.
func (b *patchbay) do(f func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("the lab is closed")
	}
	b.loop.do(f)
	return nil
}

func (l *loop) do(f func()) {
	ran := make(chan struct{})
	l.mu.Lock()
	l.jobs = append(l.jobs, func() { f(); close(ran) })
	unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	l.mu.Unlock()
	<-ran
}

// add runs a station between two devices, whose descriptors are the patchbay's from now on.
func (b *patchbay) add(s station, fds [2]int) (err error) {
	closed := b.do(func() {
		p := &plugged{owner: b, station: s, fds: fds}
		for leg, fd := range fds {
			b.loop.byFD[int32(fd)] = end{p, router.Leg(leg)}
			err = errors.Join(err, b.loop.listen(fd))
		}
		b.loop.plugged = append(b.loop.plugged, p)
	})
	if closed != nil {
		closeTAP(fds[0])
		closeTAP(fds[1])
	}
	return errors.Join(closed, err)
}

// remove takes a station out, and its devices with it.
func (b *patchbay) remove(s station) error {
	return b.do(func() { b.loop.unplug(func(p *plugged) bool { return p.station == s }) })
}

// unplug takes stations out. Closed descriptors leave the epoll by themselves.
func (l *loop) unplug(of func(*plugged) bool) {
	l.plugged = slices.DeleteFunc(l.plugged, func(p *plugged) bool {
		if !of(p) {
			return false
		}
		for _, fd := range p.fds {
			delete(l.byFD, int32(fd))
			closeTAP(fd)
		}
		return true
	})
}

// close takes the lab's stations out; with the last lab the thread ends.
func (b *patchbay) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	b.loop.do(func() { b.loop.unplug(func(p *plugged) bool { return p.owner == b }) })
	loops.Lock()
	defer loops.Unlock()
	if loops.users--; loops.users > 0 {
		return
	}
	loops.running = nil
	b.loop.do(func() { b.loop.closed = true })
	<-b.loop.done
}

func (l *loop) run() {
	runtime.LockOSThread() // for good: the thread ends with this goroutine
	defer close(l.done)
	defer processors(-1)
	// Without the 50 us by which the kernel may round a thread's timers, and before all ordinary threads, for it plays
	// hardware: an ordinary one waits for up to 3 ms for another's slice to end. It takes some microseconds per packet,
	// and the kernel leaves 5 % of the time to others in any case (sched(7)). Both are for accuracy; where they are
	// not permitted the patchbay is less accurate.
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: patchbayPriority, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0)
	for woke := time.Now(); !l.closed; {
		now := time.Now()
		next := l.poll(now)
		if early := quantum - now.Sub(woke); early > 0 {
			doze(early)
			now = time.Now()
			next = l.poll(now.Add(quantum / 2)) // what it is late with on average
		}
		n := l.wait(next)
		woke = time.Now()
		for _, e := range l.ready[:n] {
			if e.Fd == int32(l.wake) {
				l.runJobs()
			} else if x, ok := l.byFD[e.Fd]; ok { // or a job has just taken it out
				l.read(x)
			}
		}
	}
	unix.Close(l.epoll)
	unix.Close(l.wake)
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

// poll lets stations do what is due, and says when the next one wants to.
func (l *loop) poll(now time.Time) (next time.Time) {
	for _, p := range l.plugged {
		if p.asked || !p.next.IsZero() && !p.next.After(now) {
			p.next, p.asked = p.station.Poll(now), false
		}
		if !p.next.IsZero() && (next.IsZero() || p.next.Before(next)) {
			next = p.next
		}
	}
	return next
}

// wait sleeps until a frame, a job or the deadline comes, or somewhat shorter, and says how many devices are ready.
func (l *loop) wait(until time.Time) (ready int) {
	left := longestWait
	if !until.IsZero() {
		left = max(0, time.Until(until))
	}
	if !l.idle {
		left = min(left, awake)
	}
	t := unix.NsecToTimespec(int64(left))
	var n uintptr
	var errno unix.Errno
	// epoll_pwait2(2), whose time is in nanoseconds.
	if l.idle {
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epoll), uintptr(unsafe.Pointer(&l.ready)), readyMost, uintptr(unsafe.Pointer(&t)), 0, 0)
	} else {
		n, _, errno = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epoll), uintptr(unsafe.Pointer(&l.ready)), readyMost, uintptr(unsafe.Pointer(&t)), 0, 0)
	}
	if errno != 0 { // interrupted: looked at again
		return 0
	}
	l.idle = n == 0 && left >= awake
	return int(n)
}

// longestWait is for how long it sleeps where nothing is due; a job wakes it.
const longestWait = time.Minute

// read takes what one device has.
func (l *loop) read(x end) {
	now := time.Now()
	x.asked = true
	for range readBurst {
		n, err := unix.Read(x.fds[x.leg], l.buf[:])
		if err != nil {
			return // nothing more for now
		}
		x.station.Handle(now, x.leg, l.buf[:n])
	}
}

// runJobs does what others asked for.
func (l *loop) runJobs() {
	var count [8]byte
	unix.Read(l.wake, count[:])
	l.mu.Lock()
	jobs := l.jobs
	l.jobs = nil
	l.mu.Unlock()
	for _, job := range jobs {
		job()
	}
	for _, p := range l.plugged { // whosever they were
		p.asked = true
	}
}
