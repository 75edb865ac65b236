package host

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/engine/segment"
)

func TestTCPCrossesTwoTUNsInSuperPackets(t *testing.T) {
	for _, apart := range []bool{false, true} {
		for _, queues := range []int{1, 3} {
			for _, six := range []bool{false, true} {
				t.Run(fmt.Sprintf("apart=%v/queues=%d/IPv6=%v", apart, queues, six), func(t *testing.T) {
					a, b, ab, ba := pair(t, queues, apart, tunFeatures)
					talk(t, a, b, six, 16<<20)
					for _, c := range []*carried{ab, ba} {
						if c.super.Load() == 0 || c.packets.Load() > 16<<20/tunMTU {
							t.Errorf("%d packets, %d of them super-packets", c.packets.Load(), c.super.Load())
						}
					}
				})
			}
		}
	}
}

func TestIperfRunsThroughTwoTUNsBothWays(t *testing.T) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("needs iperf3")
	}
	a, b, _, _ := pair(t, 1, true, tunFeatures)
	run := func(to string, arg ...string) {
		server := exec.Command("iperf3", "-s", "-1", "--forceflush")
		said, err := server.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		b.do(t, server.Start) // in the namespace of the thread
		defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
		lines := bufio.NewScanner(said)
		for lines.Scan() && !strings.Contains(lines.Text(), "listening") {
		}
		go io.Copy(io.Discard, said)
		var out bytes.Buffer
		client := exec.Command("iperf3", append(arg, "-c", to, "--connect-timeout", "5000")...)
		client.Stdout, client.Stderr = &out, &out
		a.do(t, client.Start)
		if err := client.Wait(); err != nil || !strings.Contains(out.String(), "iperf Done") {
			t.Errorf("%v: %v\n%s", arg, err, out.String())
		}
	}
	run("10.9.0.2", "-n", "64M")
	run("10.9.0.2", "-n", "64M", "-R")
	run("fd09::2", "-n", "64M", "-P", "4")
}

func TestUDPSuperPacketsCrossTwoTUNsAndArriveAsDatagrams(t *testing.T) {
	for _, apart := range []bool{false, true} {
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprintf("apart=%v/IPv6=%v", apart, six), func(t *testing.T) {
				a, b, ab, _ := pair(t, 1, apart, tunFeatures)
				sendRuns(t, a, b, six)
				if ab.super.Load() == 0 {
					t.Error("no super-packet: USO is off")
				}
			})
		}
	}
}

func TestAKernelWithoutOffloadsIsServedInPlainPackets(t *testing.T) {
	// Features that no kernel has stand for those that an old one has not.
	const unknown = 1 << 20
	noUSO := append([]features{{bits: tunFeatures[0].bits | unknown, is: tunFeatures[0].is}}, tunFeatures[1:]...)
	a, b, ab, _ := pair(t, 1, true, noUSO)
	sendRuns(t, a, b, false)
	if ab.super.Load() > 0 {
		t.Error("super-packets of UDP came all the same")
	}
	talk(t, a, b, false, 4<<20)
	if ab.super.Load() == 0 {
		t.Error("there were no super-packets of TCP")
	}
	none := []features{{bits: unknown}, {}}
	a, b, ab, _ = pair(t, 1, true, none)
	talk(t, a, b, true, 4<<20)
	if ab.super.Load() > 0 {
		t.Error("super-packets came without any offload")
	}
	if o := newCell(t).tun(t, 1, 1, noUSO).Offloads(); o != (TUNOffloads{TCP: true}) {
		t.Errorf("without USO it says %+v", o)
	}
	c := newCell(t)
	if o := c.tun(t, 1, 1, none).Offloads(); o != (TUNOffloads{}) {
		t.Errorf("without any it says %+v", o)
	}
	c.do(t, func() error {
		if _, err := openTUNQueues(tunDevice, "t1", 1, none[:1]); !errors.Is(err, unix.EINVAL) {
			t.Errorf("with nothing to fall back to: %v", err)
		}
		return nil
	})
}

func TestSuperPacketsHaveAtMostTheSegmentsThatWereSet(t *testing.T) {
	const most = 7
	a, b, ab, _ := pair(t, 1, false, tunFeatures)
	a.do(t, func() error { return SetLinkSegments("t0", most) })
	a.do(t, func() error { return SetLinkSegments("t0", most) })
	talk(t, a, b, false, 4<<20)
	if n := ab.segments.Load(); n < 2 || n > most {
		t.Errorf("the largest had %d", n)
	}
	a.do(t, func() error {
		if err := SetLinkSegments("t9", most); err == nil || !strings.Contains(err.Error(), "t9") {
			t.Errorf("of an interface that is not there: %v", err)
		}
		return SetLinkMTU("t0", 9000)
	})
	a.do(t, func() error {
		l, err := netlink.LinkByName("t0")
		if err == nil && (l.Attrs().MTU != 9000 || l.Attrs().GSOMaxSegs != most) {
			t.Errorf("MTU %d, %d segments", l.Attrs().MTU, l.Attrs().GSOMaxSegs)
		}
		return err
	})
}

func TestEachFlowStaysOnOneOfTheQueues(t *testing.T) {
	c := newCell(t)
	tun := c.tun(t, 1, 4, tunFeatures)
	if n := len(tun.Queues()); n != 4 {
		t.Fatalf("%d queues", n)
	}
	const flows, each = 40, 5
	c.do(t, func() error {
		for range flows {
			s, err := net.Dial("udp", "10.9.0.2:9")
			if err != nil {
				return err
			}
			defer s.Close()
			for range each {
				if _, err := s.Write([]byte("x")); err != nil {
					return err
				}
			}
		}
		return nil
	})
	where := map[uint16]int{}
	used := map[int]bool{}
	got := 0
	for i, q := range tun.Queues() {
		for buf := make([]byte, 2048); ; {
			n, err := q.TryRead(buf)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			p := buf[segment.HeaderSize:n]
			if p[0]>>4 != 4 || p[9] != 17 { // the kernel's own, of IPv6
				continue
			}
			port := binary.BigEndian.Uint16(p[20:])
			if before, ok := where[port]; ok && before != i {
				t.Errorf("the flow from port %d is on queues %d and %d", port, before, i)
			}
			where[port], used[i] = i, true
			got++
		}
	}
	if got != flows*each || len(used) < 2 {
		t.Errorf("%d packets came, on %d queues", got, len(used))
	}
}

func TestAnInterfaceThatIsTakenIsSaidSo(t *testing.T) {
	c := newCell(t)
	c.do(t, func() error {
		for _, first := range []int{1, 3} {
			tun, err := OpenTUN("t0", first)
			if err != nil {
				return err
			}
			for _, second := range []int{1, 3} {
				if _, err := OpenTUN("t0", second); err == nil || !strings.Contains(err.Error(), "interface t0 is in use") {
					t.Errorf("%d queues of one that has %d: %v", second, first, err)
				}
			}
			if err := tun.Close(); err != nil {
				return err
			}
			if there, err := LinkExists("t0"); there || err != nil {
				t.Errorf("after Close the interface is there: %v, %v", there, err)
			}
		}
		if _, err := OpenTUN("lo", 1); err == nil || !strings.Contains(err.Error(), "interface lo is in use") {
			t.Errorf("the name of another kind of interface: %v", err)
		}
		// What "ip tuntap add" made is there for us.
		lasting := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "t5"}, Mode: netlink.TUNTAP_MODE_TUN,
			Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}
		if err := netlink.LinkAdd(lasting); err != nil {
			return err
		}
		for _, f := range lasting.Fds {
			f.Close()
		}
		tun, err := OpenTUN("t5", 3)
		if err != nil {
			return err
		}
		if n := len(tun.Queues()); n != 1 {
			t.Errorf("%d queues", n)
		}
		return tun.Close()
	})
}

func TestATUNThatCannotBeOpenedSaysWhatToDo(t *testing.T) {
	for _, name := range []string{"", "sixteenlettersss"} {
		if _, err := OpenTUN(name, 1); err == nil || !strings.Contains(err.Error(), "is not a name for an interface") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := openTUNQueues(t.TempDir()+"/tun", "t0", 1, tunFeatures); err == nil || !strings.Contains(err.Error(), "modprobe tun") {
		t.Errorf("without the device: %v", err)
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{os.NewSyscallError("ioctl", syscall.EPERM), "run as root or with CAP_NET_ADMIN"},
		{&fs.PathError{Op: "open", Path: "/dev/net/tun", Err: syscall.EACCES}, "(--userspace)"},
		{syscall.EBUSY, "interface weft9 is in use"},
		{syscall.ENODEV, "modprobe tun"},
		{syscall.EINVAL, "making interface weft9: "},
	} {
		if err := tunError("/dev/null", "weft9", c.err); !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.err) {
			t.Errorf("%v becomes %q, without %q", c.err, err, c.want)
		}
	}
	c := newCell(t)
	c.do(t, func() error {
		const nobody = 65534
		// This thread alone, which ends with the test.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			return errno
		}
		if _, err := OpenTUN("t0", 1); err == nil || !strings.Contains(err.Error(), "run as root or with CAP_NET_ADMIN") {
			t.Errorf("as nobody: %v", err)
		}
		return nil
	})
}

func TestAReadThatWaitsIsWokenAndNoWakeUpIsLost(t *testing.T) {
	c := newCell(t)
	tun := c.tun(t, 1, 1, tunFeatures)
	q := tun.Queues()[0]
	var said, seen atomic.Int64
	const rounds = 4000
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // a second one that wakes, and has nothing to say
		for {
			select {
			case <-stop:
				return
			default:
				q.Wake()
				runtime.Gosched()
			}
		}
	})
	progress := make(chan int64, 1)
	var returns atomic.Int64
	wg.Go(func() {
		for buf := make([]byte, 2048); ; {
			if _, err := readOf(q, buf); err != nil {
				return
			}
			returns.Add(1)
			if now := said.Load(); now != seen.Load() {
				seen.Store(now)
				progress <- now
			}
		}
	})
	const patience = 20 * time.Second // for one wake-up, where others use the machine too
	fail := time.NewTimer(patience)
	helped, began := true, time.Now()
	for i := int64(1); i <= rounds; i++ {
		if helped && (i == rounds/2 || time.Since(began) > patience/4) { // from here on, nobody helps
			close(stop)
			helped = false
		}
		if !helped && time.Since(began) > patience/2 {
			t.Logf("the machine is busy: %d wake-ups", i)
			break
		}
		fail.Reset(patience)
		for !helped && i%2 > 0 && !q.waiting.Load() { // every other time it waits for sure
			runtime.Gosched()
		}
		said.Store(i)
		q.Wake()
		for got := int64(0); got < i; {
			select {
			case got = <-progress:
			case <-fail.C:
				t.Fatalf("the wake-up %d was lost", i)
			}
		}
	}
	fail.Reset(patience)
	for before := int64(-1); before != returns.Load(); { // and in the end it waits, and goes on waiting
		before = returns.Load()
		select {
		case <-fail.C:
			t.Fatal("nobody wakes it, and it does not wait")
		case <-time.After(20 * time.Millisecond):
		}
	}
	tun.Close()
	wg.Wait()
	q = c.tun(t, 1, 1, tunFeatures).Queues()[0]
	q.Wake()                                      // ahead of the Read
	for n, buf := 1, make([]byte, 2048); n > 0; { // the kernel may have something to say, too
		var err error
		if n, err = readOf(q, buf); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClosingEndsReadsAndWritesAndTheInterfaceIsGone(t *testing.T) {
	c := newCell(t)
	for round := range 50 {
		tun := c.tun(t, 1, 2, tunFeatures)
		var wg sync.WaitGroup
		for _, q := range tun.Queues() {
			wg.Go(func() {
				buf := make([]byte, 2048)
				for {
					if _, err := readOf(q, buf); err != nil {
						if err != os.ErrClosed {
							t.Error(err)
						}
						return
					}
				}
			})
			for range round % 3 { // in the first, nobody disturbs those who wait
				wg.Go(func() {
					p := make([]byte, segment.HeaderSize+20)
					p[segment.HeaderSize] = 0x45
					for {
						q.Wake()
						if err := q.Write(p); errors.Is(err, os.ErrClosed) {
							return
						}
					}
				})
			}
		}
		for round%3 == 0 && !tun.Queues()[0].waiting.Load() {
			runtime.Gosched()
		}
		if err := tun.Close(); err != nil {
			t.Fatal(err)
		}
		c.do(t, func() error {
			there, err := LinkExists("t0")
			if there {
				t.Error("Close has returned and the interface is there")
			}
			return err
		})
		wg.Wait()
		if err := tun.Close(); err != nil {
			t.Error(err)
		}
		if _, err := tun.Queues()[0].TryRead(make([]byte, 9)); err != os.ErrClosed {
			t.Errorf("closed, TryRead says %v", err)
		}
	}
}

func TestAnInterfaceThatSomebodyRemovesEndsTheReadWithASentence(t *testing.T) {
	c := newCell(t)
	tun := c.tun(t, 1, 1, tunFeatures)
	ended := make(chan error)
	go func() {
		for buf := make([]byte, 2048); ; {
			if _, err := readOf(tun.Queues()[0], buf); err != nil {
				ended <- err
				return
			}
		}
	}()
	c.do(t, func() error {
		l, err := netlink.LinkByName("t0")
		if err == nil {
			err = netlink.LinkDel(l)
		}
		return err
	})
	select {
	case err := <-ended:
		if !strings.Contains(err.Error(), "interface t0 was removed") {
			t.Errorf("it says %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the read waits for ever")
	}
	if err := tun.Queues()[0].Write(make([]byte, 60)); err == nil || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("writing says %v", err)
	}
}

func TestPacketsCostNoMemory(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector has the stack's memory escape")
	}
	c := newCell(t)
	tun := c.tun(t, 1, 1, tunFeatures)
	q := tun.Queues()[0]
	buf := make([]byte, 2048)
	packet := datagram(cellAddr(2, false), cellAddr(1, false), 9, 9, 100, 0)
	bad := make([]byte, 12)
	if n := testing.AllocsPerRun(200, func() {
		if err := q.Write(packet); err != nil {
			t.Error(err)
		}
		_ = q.Write(bad)
		if _, err := q.TryRead(buf); err != nil {
			t.Error(err)
		}
		q.Wake()
		if _, err := readOf(q, buf); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
