// Package guest runs another kernel on this machine: Debian's, in QEMU, with this machine's files as its own.
//
// # What it is for
//
// Tests against what only a kernel has, first of all its WireGuard. The machine that the tests run on may have a kernel
// without it, or one that is nobody's in particular; the guest's is the one that people run.
//
// # How its parts meet
//
//	test --> QEMU in the namespace of a netns.Router
//	           | virtio-net   --> a TAP device on the router's inside network
//	           | virtio-9p    --> /, read-only
//	           | virtio-serial -> a socket: [Serve] runs commands and says what came of them
//	           | serial line  --> a file: what the kernel says
//
// QEMU emulates the processor in software, so nothing is needed but its package; a guest is up within ten seconds, and a
// tenth to a twentieth as fast as the machine. Its initial RAM disk is made here: busybox, the modules that are needed, and
// a script that mounts this machine's root and starts the agent, which is any program that calls [Serve]: a test
// starts itself. All programs of this machine run in the guest, then, and see its kernel and its network.
//
// # What it leaves behind
//
// Nothing. The guest writes to memory of its own only (/run), and ends with [Guest.Close], with its laboratory, or by
// itself when the process that started it is gone, for then the agent's socket closes.
//
// # What it refuses
//
// It downloads nothing: scripts/install-deps guest does that. [Available] says in one sentence what is missing.
package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"weft/lab/netns"
)

const (
	// bootTimeout is how long a guest may take until it answers: 7 s on a quiet machine of two cores.
	bootTimeout = 3 * time.Minute
	// memory of a guest in MiB: the kernel takes 80, the rest is for programs.
	memory = 512
	// device is the guest's interface, and portName what its serial port is called.
	device   = "eth0"
	portName = "weft.agent"
)

// DirVariable names the environment variable with the directory that scripts/install-deps put the guest's kernel in.
const DirVariable = "WEFT_GUEST"

// Available says in one sentence why there can be no guest here, or nil.
func Available() error {
	if err := netns.Available(); err != nil {
		return err
	}
	if runtime.GOARCH != "amd64" {
		return errors.New("the guest's kernel is for amd64 only")
	}
	dir := os.Getenv(DirVariable)
	if dir == "" {
		return fmt.Errorf("%s does not say where the guest's kernel is: run make test-guest", DirVariable)
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		return errors.New("the program qemu-system-x86_64 is missing: run scripts/install-deps guest")
	}
	if _, err := findBusybox(); err != nil {
		return err
	}
	_, err := findKernel(dir)
	return err
}

// Config says how a guest is to be.
type Config struct {
	// Router is on whose inside network the guest is, and in whose namespace QEMU runs.
	Router *netns.Router
	// Addrs are the guest's on that network; its default routes lead to the router.
	Addrs []netip.Prefix
	// Agent is the program that calls Serve, by its absolute path, and its arguments.
	Agent []string
	// Modules are loaded besides those that the guest needs itself, with what they depend on.
	Modules []string
}

// A Guest is a running machine. Its methods may be called at once.
type Guest struct {
	router *netns.Router
	qemu   *netns.Process
	dir    string
	port   net.Conn
	ended  chan struct{} // closed when nothing more comes from the agent

	mu      sync.Mutex
	lastID  int
	waiting map[int]chan answer
}

// guests tells the guests of one process apart.
var guests struct {
	sync.Mutex
	n int
}

// Boot starts a guest and waits until it obeys, with its network up.
func Boot(ctx context.Context, lab *netns.Lab, c Config) (*Guest, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	guests.Lock()
	guests.n++
	number := guests.n
	guests.Unlock()
	g := &Guest{router: c.Router, dir: filepath.Join(lab.Dir(), fmt.Sprint("guest", number)), ended: make(chan struct{}), waiting: map[int]chan answer{}}
	if err := g.boot(ctx, c, fmt.Sprint("guest", number)); err != nil {
		return nil, errors.Join(fmt.Errorf("booting a guest: %w", err), g.Close())
	}
	return g, nil
}

func (g *Guest) boot(ctx context.Context, c Config, tap string) error {
	kernel, err := findKernel(os.Getenv(DirVariable))
	if err != nil {
		return err
	}
	if err := os.Mkdir(g.dir, 0o700); err != nil {
		return err
	}
	if err := kernel.writeImage(filepath.Join(g.dir, "initrd"), c.Modules, c.Agent); err != nil {
		return err
	}
	socket := filepath.Join(g.dir, "agent")
	g.qemu, err = c.Router.Start(c.Router.Command(context.WithoutCancel(ctx), "qemu-system-x86_64",
		"-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "1", "-m", strconv.Itoa(memory),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-kernel", kernel.image, "-initrd", filepath.Join(g.dir, "initrd"),
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off",
		"-serial", "file:"+g.console(),
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
		"-netdev", "tap,id=net,ifname="+tap+",script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=net,romfile=,mac=52:54:00:00:00:"+fmt.Sprintf("%02x", byte(os.Getpid())),
		"-chardev", "socket,id=agent,server=on,wait=off,path="+socket,
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name="+portName))
	if err != nil {
		return err
	}
	// QEMU makes the TAP device and the socket before it starts the machine.
	err = netns.WaitFor(ctx, "QEMU", func() error {
		if err := g.qemu.Err(); err != nil {
			return err
		}
		_, err := c.Router.Run(ctx, "ip", "link", "set", tap, "master", "lan", "up")
		if err == nil {
			g.port, err = net.Dial("unix", socket)
		}
		return err
	})
	if err != nil {
		return err
	}
	go g.read()
	if _, err := g.Run(ctx, nil, "ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	return g.SetAddrs(ctx, c.Addrs...)
}

// SetAddrs gives the guest these addresses and no others, and the routes that belong to them. The default routes go first: with
// a route and no address on it, Linux sends from another interface's address, and be it that of a tunnel.
func (g *Guest) SetAddrs(ctx context.Context, addrs ...netip.Prefix) error {
	for _, family := range []string{"-4", "-6"} {
		if _, err := g.Run(ctx, nil, "ip", family, "route", "flush", "exact", allOf(family)); err != nil {
			return err
		}
	}
	lines := []string{"link set " + device + " addrgenmode none up", "addr flush dev " + device + " scope global"}
	for _, a := range addrs {
		family, nodad := "-4", ""
		if a.Addr().Is6() {
			family, nodad = "-6", " nodad"
		}
		lines = append(lines, "addr add "+a.String()+" dev "+device+nodad,
			"route replace "+allOf(family)+" via "+a.Masked().Addr().Next().String())
	}
	_, err := g.Run(ctx, []byte(strings.Join(lines, "\n")+"\n"), "ip", "-batch", "-")
	return err
}

func allOf(family string) string {
	if family == "-6" {
		return "::/0"
	}
	return "0.0.0.0/0"
}

func (g *Guest) console() string { return filepath.Join(g.dir, "console") }

// Close turns the guest off.
func (g *Guest) Close() error {
	if g.port != nil {
		g.port.Close()
	}
	if g.qemu == nil {
		return nil
	}
	return g.qemu.Kill()
}

// Run runs a program in the guest to its end, with this on its standard input, and returns what it printed on its standard
// output. If it fails, the error carries what it printed on the other. If ctx ends, so does the program.
func (g *Guest) Run(ctx context.Context, stdin []byte, program string, args ...string) (string, error) {
	return g.RunEnv(ctx, nil, stdin, program, args...)
}

// RunEnv is Run with variables for the program's environment.
func (g *Guest) RunEnv(ctx context.Context, env []string, stdin []byte, program string, args ...string) (string, error) {
	got := make(chan answer, 1)
	g.mu.Lock()
	g.lastID++
	id := g.lastID
	g.waiting[id] = got
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.waiting, id)
		g.mu.Unlock()
	}()
	if err := g.say(request{ID: id, Args: append([]string{program}, args...), Env: env, Stdin: stdin}); err != nil {
		return "", g.lost(err)
	}
	select {
	case a := <-got:
		if a.Error != "" {
			return string(a.Stdout), fmt.Errorf("%s in the guest: %s: %s", filepath.Base(program), a.Error, strings.TrimSpace(string(a.Stderr)))
		}
		return string(a.Stdout), nil
	case <-ctx.Done():
		return "", errors.Join(fmt.Errorf("%s in the guest: %w", filepath.Base(program), context.Cause(ctx)), g.say(request{ID: id, Stop: true}))
	case <-g.ended:
		return "", g.lost(errors.New("it is silent"))
	}
}

func (g *Guest) say(r request) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err = g.port.Write(append(b, '\n'))
	return err
}

// lost is an error of a guest that is gone, with its last words.
func (g *Guest) lost(err error) error {
	said, _ := os.ReadFile(g.console())
	said = bytes.TrimSpace(said[max(0, len(said)-1000):])
	return fmt.Errorf("the guest has gone: %w: %s", errors.Join(err, g.qemu.Err()), said)
}

// read hands answers to those who wait for them.
func (g *Guest) read() {
	defer close(g.ended)
	d := json.NewDecoder(g.port)
	for {
		var a answer
		if d.Decode(&a) != nil {
			return
		}
		g.mu.Lock()
		if got := g.waiting[a.ID]; got != nil {
			got <- a // it has room for one
			delete(g.waiting, a.ID)
		}
		g.mu.Unlock()
	}
}
