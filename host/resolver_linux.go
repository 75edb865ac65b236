package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	dnsPort = 53

	// resolverTimeout bounds one conversation with systemd-resolved or one run
	// of resolvconf. Both answer within milliseconds; starting resolved by
	// D-Bus activation takes up to some seconds.
	resolverTimeout = 10 * time.Second

	resolverState = "resolver.json"

	resolvConfPath = "/etc/resolv.conf"
	// What systemd-resolved(8) offers as /etc/resolv.conf: the stub, and the
	// list of servers it knows.
	resolvedStub    = "/run/systemd/resolve/stub-resolv.conf"
	resolvedUplinks = "/run/systemd/resolve/resolv.conf"
)

// resolverMode is a way to wire our resolver in; it is stored, so the values stay.
type resolverMode string

const (
	modeResolved   resolverMode = "systemd-resolved"
	modeResolvconf resolverMode = "resolvconf"
	modeFile       resolverMode = ResolverFile
)

// resolverEnv is where the resolver's surroundings are. Tests build their own.
type resolverEnv struct {
	root       string // in front of /etc and /run; "" on a real machine
	bus        func(context.Context) (*dbus.Conn, error)
	linkIndex  func(name string) (index int, ok bool, err error)
	resolvconf func() (program string, ok bool)
	foreign    func() bool // are we in another network namespace than the machine's first process?
	mountPoint func(path string) (bool, error)
	hostname   func() (string, error)
}

func systemEnv() *resolverEnv {
	return &resolverEnv{
		bus: func(ctx context.Context) (*dbus.Conn, error) {
			return dbus.ConnectSystemBus(dbus.WithContext(ctx))
		},
		linkIndex:  linkIndex,
		resolvconf: findResolvconf,
		foreign:    foreignNamespace,
		mountPoint: isMountPoint,
		hostname:   os.Hostname,
	}
}

// path is where the file that a machine calls p is.
func (e *resolverEnv) path(p string) string { return filepath.Join(e.root, p) }

// Resolver is a wiring that is in place. Its methods may be called at once.
type Resolver struct {
	env *resolverEnv
	cfg ResolverConfig

	mu     sync.Mutex
	saved  *savedResolver // nil once closed
	closed bool
}

// savedResolver is the record in the state directory: all that it takes to undo.
type savedResolver struct {
	Mode      resolverMode `json:"mode"`
	Interface string       `json:"interface"`
	Server    netip.Addr   `json:"server"`
	Domains   []string     `json:"domains"`
	Search    []string     `json:"search"` // absent in records of versions that searched in all Domains
	All       bool         `json:"all,omitempty"`

	Record *resolvconfRecord `json:"record,omitempty"` // with modeResolvconf
	File   *savedFile        `json:"file,omitempty"`   // with modeFile
}

func (s *savedResolver) takeover() takeover {
	t := takeover{iface: s.Interface, server: s.Server, search: s.Search}
	if t.search == nil {
		t.search = s.Domains
	}
	return t
}

// ConfigureResolver makes the machine ask our server for the names of our domains.
// It may be repeated with the same configuration, also after a crash: what is in
// place stays, what somebody else rewrote meanwhile is taken as the new starting
// point.
func ConfigureResolver(ctx context.Context, cfg ResolverConfig) (*Resolver, error) {
	return configureResolver(ctx, systemEnv(), cfg)
}

func configureResolver(ctx context.Context, env *resolverEnv, cfg ResolverConfig) (*Resolver, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := &Resolver{env: env, cfg: cfg}
	if err := r.Refresh(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// check keeps what must not get into a configuration file out of it.
func (c ResolverConfig) check() error {
	if !c.Server.IsValid() || c.Server.IsUnspecified() {
		return fmt.Errorf("wire the resolver: %v is not an address of a name server", c.Server)
	}
	if c.Interface == "" || strings.ContainsAny(c.Interface, "/ \t\r\n") {
		return fmt.Errorf("wire the resolver: %q is not the name of an interface", c.Interface)
	}
	if len(c.Domains) == 0 {
		return errors.New("wire the resolver: no domain is given")
	}
	for _, d := range slices.Concat(c.Domains, c.Search) {
		if d == "" || strings.ContainsFunc(d, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '~' || c == '#' || c == ';' }) {
			return fmt.Errorf("wire the resolver: %q is not the name of a domain", d)
		}
	}
	return nil
}

// Refresh puts the wiring in place again where it got lost, because a DHCP
// client rewrote resolv.conf, say. It is cheap when all is well; call it after
// changes of the network.
func (r *Resolver) Refresh(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("wire the resolver: it was taken out for good")
	}
	unlock, err := r.env.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	prior, err := loadResolver(r.cfg.StateDir)
	if err != nil {
		return err
	}
	modes, err := r.env.modes(prior)
	if err != nil {
		return err
	}
	var failed []error
	for _, mode := range modes {
		err := r.wire(ctx, mode, prior)
		if err == nil {
			if len(failed) > 0 {
				r.cfg.logger().Warn("the owner of resolv.conf would not route the overlay's domain, took the next way",
					"way", mode, "err", sentence(failed...))
			}
			return nil
		}
		failed = append(failed, err)
		if prior, err = loadResolver(r.cfg.StateDir); err != nil {
			return sentence(append(failed, err)...)
		}
	}
	return sentence(failed...)
}

// wire tries one mode and undoes what the attempt left if it fails.
func (r *Resolver) wire(ctx context.Context, mode resolverMode, prior *savedResolver) error {
	ctx, cancel := context.WithTimeout(ctx, resolverTimeout)
	defer cancel()
	s := &savedResolver{
		Mode:      mode,
		Interface: r.cfg.Interface,
		Server:    r.cfg.Server,
		Domains:   r.cfg.Domains,
		Search:    append([]string{}, r.cfg.Search...),
		All:       r.cfg.All,
	}
	if prior != nil && !prior.continuesAs(s) {
		if err := r.env.undo(ctx, prior); err != nil && !errors.Is(err, errOtherFile) {
			return fmt.Errorf("wire the resolver: undo the former wiring: %w", err)
		}
		if err := dropResolver(r.cfg.StateDir); err != nil {
			return err
		}
		prior = nil
	}
	recorded := false
	record := func() error {
		err := saveResolver(r.cfg.StateDir, s)
		recorded = recorded || err == nil
		return err
	}
	var err error
	switch mode {
	case modeResolved:
		err = r.env.wireResolved(ctx, s, record)
	case modeResolvconf:
		err = r.env.wireResolvconf(ctx, s, record, r.cfg.logger())
	case modeFile:
		err = r.env.wireFile(s, prior, record)
	}
	if err == nil {
		r.saved = s
		return nil
	}
	err = fmt.Errorf("wire the resolver by way of %s: %w", mode, err)
	if recorded {
		err = sentence(err, repairResolver(r.env, r.cfg.StateDir))
	}
	return err
}

// continuesAs reports whether the wiring of s can be put in place over that of
// prior without undoing prior first. systemd-resolved forgets what it was told before.
func (prior *savedResolver) continuesAs(s *savedResolver) bool {
	return prior.Mode == s.Mode && prior.Interface == s.Interface && prior.Server == s.Server &&
		(s.Mode == modeResolved || slices.Equal(prior.takeover().search, s.Search))
}

// modes are the ways that this machine's state suggests, best first.
func (e *resolverEnv) modes(prior *savedResolver) ([]resolverMode, error) {
	conf, err := inspect(e.path(resolvConfPath))
	if err != nil {
		return nil, fmt.Errorf("wire the resolver: %w", err)
	}
	if prior != nil && prior.Mode == modeFile && prior.File.isOurs(conf) {
		return []resolverMode{modeFile}, nil
	}
	mounted, err := e.mounted()
	if err != nil {
		return nil, err
	}
	switch {
	case mounted:
		// Somebody gave this namespace or container a file of its own. Whatever
		// manages the machine's file does not manage this one.
		return []resolverMode{modeFile}, nil
	case e.foreign():
		return nil, ErrSharedResolver
	case e.ownedByResolved(conf):
		return []resolverMode{modeResolved, modeFile}, nil
	case e.ownedByResolvconf(conf):
		return []resolverMode{modeResolvconf, modeFile}, nil
	}
	return []resolverMode{modeFile}, nil
}

// mounted reports whether /etc/resolv.conf is a mount of its own. A mount on a symbolic
// link lies on the file that the link leads to: replacing the link would then
// change the machine's /etc.
func (e *resolverEnv) mounted() (bool, error) {
	real, err := filepath.EvalSymlinks(e.path(resolvConfPath))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("wire the resolver: %w", err)
	}
	if real, err = filepath.Abs(real); err != nil {
		return false, fmt.Errorf("wire the resolver: %w", err)
	}
	mounted, err := e.mountPoint(real)
	if err != nil {
		return false, fmt.Errorf("wire the resolver: is %s a mount point: %w", real, err)
	}
	return mounted, nil
}

// undo takes a wiring out.
func (e *resolverEnv) undo(ctx context.Context, s *savedResolver) error {
	switch s.Mode {
	case modeResolved:
		return e.unwireResolved(ctx, s)
	case modeResolvconf:
		return e.unwireResolvconf(ctx, s)
	case modeFile:
		return e.unwireFile(s)
	}
	return fmt.Errorf("the record of it names %q, which this version does not know", s.Mode)
}

// Mode says by way of what the wiring is done: "systemd-resolved", "resolvconf" or
// "resolv.conf".
func (r *Resolver) Mode() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.saved == nil {
		return ""
	}
	return string(r.saved.Mode)
}

// Upstreams are the name servers that the machine would ask without us, best first:
// our server forwards to them what is not of our domains. They are read anew
// on each call, because they change with the network. With systemd-resolved there
// are none: the system still knows whom it asks, see NameServers.
func (r *Resolver) Upstreams() []netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.saved == nil {
		return nil
	}
	var addrs []netip.Addr
	switch s := r.saved; s.Mode {
	case modeResolvconf:
		addrs = s.Record.upstreams(r.env, s.Server)
	case modeFile:
		addrs = s.File.upstreams(r.env, s.Server)
	}
	out := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		out[i] = netip.AddrPortFrom(a, dnsPort)
	}
	return out
}

// Close takes the wiring out. If that fails the record stays for RepairResolver.
func (r *Resolver) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.saved == nil {
		return nil
	}
	if err := repairLocked(r.env, r.cfg.StateDir); err != nil {
		return err
	}
	r.saved = nil
	return nil
}

// RepairResolver takes out a wiring that a process left behind which used this
// state directory and was killed. Without one it does nothing. What somebody
// else changed meanwhile stays as it is.
func RepairResolver(stateDir string) error {
	return repairLocked(systemEnv(), stateDir)
}

func repairLocked(env *resolverEnv, stateDir string) error {
	if left, err := ResolverLeft(stateDir); err != nil || !left {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolverTimeout)
	defer cancel()
	unlock, err := env.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return repairResolver(env, stateDir)
}

// ResolverLeft reports whether there is a wiring to take out.
func ResolverLeft(stateDir string) (bool, error) {
	s, err := loadResolver(stateDir)
	return s != nil, err
}

// repairResolver is called with the lock held.
func repairResolver(env *resolverEnv, stateDir string) error {
	s, err := loadResolver(stateDir)
	if err != nil || s == nil {
		return err
	}
	// Not a caller's context: taking it out is for the time when those end.
	ctx, cancel := context.WithTimeout(context.Background(), resolverTimeout)
	defer cancel()
	err = env.undo(ctx, s)
	if errors.Is(err, errOtherFile) {
		return nil // the record stays for the namespace that it is about
	}
	if err != nil {
		return fmt.Errorf("put the resolver of this machine back to what it was (%s): %w", s.Mode, err)
	}
	return dropResolver(stateDir)
}

// saveResolver writes the record; it is called before anything is changed.
func saveResolver(stateDir string, s *savedResolver) error {
	text, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	return WriteFileAtomic(filepath.Join(stateDir, resolverState), text, 0o600)
}

// loadResolver reads the record, nil if there is none.
func loadResolver(stateDir string) (*savedResolver, error) {
	path := filepath.Join(stateDir, resolverState)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read how the resolver was wired: %w", err)
	}
	s := new(savedResolver)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read how the resolver was wired: %s is damaged: look after %s and remove the former: %w",
			path, resolvConfPath, err)
	}
	if s.Mode == modeFile && s.File == nil || s.Mode == modeResolvconf && s.Record == nil {
		return nil, fmt.Errorf("read how the resolver was wired: %s is incomplete: look after %s and remove the former",
			path, resolvConfPath)
	}
	return s, nil
}

func dropResolver(stateDir string) error {
	err := os.Remove(filepath.Join(stateDir, resolverState))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget how the resolver was wired: %w", err)
	}
	return nil
}

// foreignNamespace reports whether this process lives in another network namespace
// than the machine's (or container's) first one. Who may not look is taken for
// no: without root there is nothing to be damaged either.
func foreignNamespace() bool {
	first, err := os.Readlink("/proc/1/ns/net")
	if err != nil {
		return false
	}
	ours, err := os.Readlink("/proc/thread-self/ns/net")
	return err == nil && ours != first
}

// isMountPoint looks path up in the mount table (proc(5), mountinfo).
func isMountPoint(path string) (bool, error) {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return false, err
	}
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(path)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == escaped {
			return true, nil
		}
	}
	return false, nil
}

// run runs a program and returns what it printed; its complaints are in the error.
func run(ctx context.Context, stdin string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// A grandchild that keeps the pipes open must not hold us up.
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		text := strings.Join(strings.Fields(stderr.String()), " ")
		return "", fmt.Errorf("%s: %w: %s", strings.Join(append([]string{program}, args...), " "), err, text)
	}
	return stdout.String(), nil
}
