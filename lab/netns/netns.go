// Package netns lays out small internets in the network namespaces of this machine: a public
// network, routers with the kernel's own NAT, homes behind them, and real programs in each.
//
// # What it is for
//
// The tests that need a real kernel and the demonstration. Nothing here simulates: packets pass
// through veth pairs, bridges, nftables and conntrack, and the programs under test are real
// processes with sockets, TUN devices and a resolv.conf of their own.
//
//	           203.0.113.0/24, 2001:db8::/64
//	server .2 ----+------- public (bridge) -------+---- any other public host
//	              |                               |
//	       .3 home-a [NAT]                  .4 home-b [NAT]
//	    192.168.1.1 |                    192.168.2.1 |
//	           +----+----+                      +----+----+
//	         .2 laptop  .3 tv                 .2 desk   ...
//
// # How its parts meet
//
// A [Lab] owns everything. It has one public [Network]; a Network is one layer 2 segment (a bridge
// in the namespace of its gateway) on which there are [Host]s and [Router]s. A Router is a Host
// with a second leg, and that leg is a Network again, so that double NAT needs no code of its own.
// The namespace of the public network is also its gateway: it alone knows the routes to prefixes
// behind routers that do not translate, as a provider does.
//
// The kernel's NAT does what Linux does. What other NATs do is done by lab/router, in this process: its
// routers ([Network.AddNATRouter]), and the cables of hosts whose links are slow or lossy ([WithLink]),
// run between TAP devices in one thread for all labs of the process, the patchbay. They end with the process, however it ends.
// The inner device of such a router is a port of its network's bridge, or the interface of a host that is there alone ([Alone]).
//
// A host may have more legs ([Host.AddLeg]), each by a line whose directions differ, change and break while it runs; two
// hosts may meet on a segment that leads nowhere else ([Lab.AddSegment]). A line's rate is the kernel's tbf, in the network
// and not in the host; a router's way outside has the same by the laboratory's own clock.
//
// Interfaces are made inside their namespaces and never pass through the namespace of the caller,
// so a lab adds no link, route or rule to the machine, and a crash leaves namespaces only.
//
// # What it leaves behind
//
// Nothing. [Lab.Close] ends the processes by their ids, then takes away namespaces, their files
// under /etc/netns and the temporary directory. Every name carries the id and start time of the
// process that owns the lab, and [New] first sweeps what dead owners left: see [Sweep].
//
// # What it refuses
//
// It runs on Linux as root with ip (iproute2) and nft (nftables); elsewhere [Available] says in one
// sentence what is missing. Delay and jitter are done by the lab's own cables and routers, for
// sch_netem is what small kernels lack.
package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// runDir is where iproute2 keeps the names of network namespaces (ip-netns(8)).
	runDir = "/run/netns"
	// etcDir holds per-namespace files that `ip netns exec` mounts over /etc (ip-netns(8)).
	etcDir = "/etc/netns"
	// toolTimeout bounds one call of ip, nft or tc. They take milliseconds; a busy machine takes
	// longer, a hung one is reported instead of waited for.
	toolTimeout = 20 * time.Second
)

// publicPrefix4 and publicPrefix6 are documentation prefixes (RFC 5737, RFC 3849): they can never
// be those of a network that this machine is really on. routedPrefix4 is cut into /28s for routers
// that do not translate, insidePrefix4 into /24s for those that do; each router has at most one /64
// of routedPrefix6.
var (
	publicPrefix4 = netip.MustParsePrefix("203.0.113.0/24")
	publicPrefix6 = netip.MustParsePrefix("2001:db8::/64")
	routedPrefix4 = netip.MustParsePrefix("198.51.100.0/24")
	insidePrefix4 = netip.MustParsePrefix("192.168.0.0/16")
	routedPrefix6 = netip.MustParsePrefix("2001:db8::/32")
)

// Lab is one small internet. Make it with [New]; its methods may be called at once from several
// goroutines.
type Lab struct {
	id     string // prefix-pid-start-n: names every namespace and directory of this lab
	dir    string // temporary directory, removed by Close
	logs   string // where the logs of started programs go
	public *Network

	mu        sync.Mutex
	names     []string // namespaces made, in order
	processes []*Process
	patchbay  *patchbay // runs routers and cables; nil: there are none yet
	nets4     int       // 192.168.x.0/24 handed out
	routed4   int       // /28 handed out
	routed6   int       // /64 handed out
	lines     int       // laid to further legs of hosts
	lans      []netip.Prefix
	closed    bool

	closeOnce sync.Once
	closeErr  error
	stopWatch func() bool
}

// Option changes how a lab is made.
type Option func(*Lab)

// KeepLogs writes the logs of started programs to dir, which must exist and which Close leaves
// alone. Without it they go with the lab.
func KeepLogs(dir string) Option { return func(l *Lab) { l.logs = dir } }

// labCount tells the labs of one process apart.
var labCount atomic.Uint32

// validPrefix is what a prefix may be: names derived from it are those of files and are cut apart
// at dashes when leftovers are swept.
var validPrefix = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`) })

// validName is what the name of a host or router may be; it becomes part of a file name.
var validName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`) })

// New makes a lab with its public network, empty of hosts. The lab lives until Close or until ctx
// ends, whichever comes first. Leftovers of dead labs with the same prefix are removed before.
func New(ctx context.Context, prefix string, options ...Option) (*Lab, error) {
	if !validPrefix().MatchString(prefix) {
		return nil, fmt.Errorf("the lab prefix %q must be 1 to 12 lower-case letters and digits, beginning with a letter", prefix)
	}
	if err := Available(); err != nil {
		return nil, err
	}
	if err := Sweep(prefix); err != nil {
		return nil, err
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("making a lab: %w", err)
	}
	l := &Lab{id: labID{prefix, os.Getpid(), start, int(labCount.Add(1))}.String()}
	l.dir = filepath.Join(os.TempDir(), l.id)
	l.logs = filepath.Join(l.dir, "log")
	for _, o := range options {
		o(l)
	}
	// Mkdir, not MkdirAll: the name can be guessed, so one that is there already is not ours.
	if err := errors.Join(os.Mkdir(l.dir, 0o700), os.Mkdir(filepath.Join(l.dir, "log"), 0o700)); err != nil {
		return nil, fmt.Errorf("making the lab's directory: %w", err)
	}
	if l.public, err = l.newPublic(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.mu.Lock()
	l.stopWatch = context.AfterFunc(ctx, func() { l.Close() })
	l.mu.Unlock()
	return l, nil
}

// PublicPrefix is the IPv4 prefix of every lab's public network.
func PublicPrefix() netip.Prefix { return publicPrefix4 }

// Public returns the public network.
func (l *Lab) Public() *Network { return l.public }

// AddHost adds a host to the public network.
func (l *Lab) AddHost(name string, options ...HostOption) (*Host, error) {
	return l.public.AddHost(name, options...)
}

// AddRouter adds a router to the public network, with an empty network behind it.
func (l *Lab) AddRouter(name string, nat NAT, options ...HostOption) (*Router, error) {
	return l.public.AddRouter(name, nat, options...)
}

// ID returns the name of this lab, with which the names of its namespaces begin.
func (l *Lab) ID() string { return l.id }

// Dir returns a directory for the files of the programs in the lab (mode 0700). Close removes it.
func (l *Lab) Dir() string { return l.dir }

// Close ends every program started in the lab (SIGTERM, then SIGKILL after a grace), then whatever
// else runs in its namespaces, and removes namespaces, files and directories. It may be called more
// than once and always does all it can; the error tells what is left, and which program had crashed.
func (l *Lab) Close() error {
	l.closeOnce.Do(func() {
		l.mu.Lock()
		l.closed = true
		stopWatch, processes, names := l.stopWatch, slices.Clone(l.processes), slices.Clone(l.names)
		bay := l.patchbay
		l.mu.Unlock()
		if stopWatch != nil {
			stopWatch()
		}
		stopAll(processes)
		if bay != nil {
			bay.close()
		}
		var crashed error
		for _, p := range processes {
			crashed = errors.Join(crashed, p.crashed()) // before its log goes
		}
		err := removeNamespaces(names)
		l.closeErr = errors.Join(crashed, err, removeDir(l.dir))
	})
	return l.closeErr
}

// namespace makes one network namespace with loopback up and returns its full name.
func (l *Lab) namespace(name string) (string, error) {
	if !validName().MatchString(name) {
		return "", fmt.Errorf("the name %q must be 1 to 32 lower-case letters, digits and dashes", name)
	}
	full := l.id + "-" + name
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return "", fmt.Errorf("the lab %s is closed", l.id)
	}
	if slices.Contains(l.names, full) {
		return "", fmt.Errorf("the lab has a host or router %q already", name)
	}
	// Named before it is made: Close then also removes one that was made by half.
	l.names = append(l.names, full)
	if err := tool("", "ip", "netns", "add", full); err != nil {
		return "", err
	}
	// Duplicate address detection would hold back every IPv6 address for a second, and there are
	// no duplicates here. The bridge hands frames to iptables where br_netfilter is loaded; a
	// switch does no such thing.
	err := enter(full, func() error {
		return errors.Join(
			sysctl("net/ipv6/conf/all/accept_dad", "0"),
			sysctl("net/ipv6/conf/default/accept_dad", "0"),
			sysctl("net/bridge/bridge-nf-call-iptables", "0"),
			sysctl("net/bridge/bridge-nf-call-ip6tables", "0"),
			sysctl("net/bridge/bridge-nf-call-arptables", "0"),
		)
	})
	if err != nil {
		return "", err
	}
	return full, batch(full, "link set lo up")
}

// sysctl sets a value of the namespace that the calling thread is in. A key that this kernel does
// not have (no IPv6, no br_netfilter) has nothing to switch off and is left alone.
func sysctl(key, value string) error {
	err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// batch runs lines of ip(8) in a namespace, all in one process, ending at the first that fails.
func batch(namespace string, lines ...string) error {
	return tool(strings.Join(lines, "\n")+"\n", "ip", "-n", namespace, "-batch", "-")
}

// tool runs one program of the system by argument list and turns its complaint into the error.
func tool(stdin, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	detach(cmd)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within %v", toolTimeout)
	}
	said := strings.Join(strings.Fields(string(out)), " ")
	return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said)
}
