package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

// The tests run the real command line. What runs for long, or touches the process, is this test's own binary
// started again: with asWeft in its environment it is weft.
const asWeft = "WEFT_CLI_TEST_IS_WEFT"

// patience bounds whatever a test waits for: far more than it should take on a machine that does other things.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(asWeft) != "" {
		os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Unsetenv(tokenEnv)
	os.Unsetenv(proxyPasswordEnv)
	flag.Parse()
	flag.Set("test.parallel", "6") // they wait for one another's processes more than they work
	os.Exit(m.Run())
}

// A result is what a command left.
type result struct {
	code     int
	out, err string
}

// inProcess runs a command that ends by itself within this process.
func inProcess(args ...string) result {
	var out, errw bytes.Buffer
	code := Main(args, strings.NewReader(""), &out, &errw)
	return result{code, out.String(), errw.String()}
}

// A process is weft, running.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err buffer
	done     chan struct{}
	ended    bool   // as it should, and its result was looked at
	tells    string // the one secret that it is for it to say, on its standard output
}

// A buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// weftCommand prepares weft in a process of its own.
func weftCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asWeft+"=1", "GORACE=halt_on_error=1 atexit_sleep_ms=50", "DBUS_SYSTEM_BUS_ADDRESS=unix:path=/nonexistent")
	return cmd
}

// start starts a prepared command, and sees to it that it ends with the test, and has told no secret.
func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.err
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.stop()
		r := p.result()
		if p.tells != "" {
			r.out = strings.Replace(r.out, p.tells, "", 1)
		}
		checkWords(t, r)
		if t.Failed() && !p.ended {
			t.Logf("%v\n--- out\n%s--- err\n%s", cmd.Args[1:], p.out.String(), p.err.String())
		}
	})
	return p
}

func startWeft(t *testing.T, args ...string) *process {
	t.Helper()
	return start(t, weftCommand(t, args...))
}

// runWeft runs weft in a process of its own to its end.
func runWeft(t *testing.T, args ...string) result {
	t.Helper()
	return startWeft(t, args...).end()
}

// end waits until the process ends by itself.
func (p *process) end() result {
	p.t.Helper()
	select {
	case <-p.done:
		p.ended = true
	case <-time.After(patience):
		p.t.Errorf("weft %s has not ended after %v", strings.Join(p.cmd.Args[1:], " "), patience)
		p.stop()
	}
	return p.result()
}

func (p *process) result() result {
	return result{p.cmd.ProcessState.ExitCode(), p.out.String(), p.err.String()}
}

// stop ends the process as a service manager does, and with force if that is not enough.
func (p *process) stop() result {
	p.t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.t.Errorf("weft %s does not end when it is told to", strings.Join(p.cmd.Args[1:], " "))
		p.cmd.Process.Kill()
		<-p.done
	}
	return p.result()
}

func (p *process) running() error {
	select {
	case <-p.done:
		return fmt.Errorf("weft %s ended with exit code %d: %s", p.cmd.Args[1], p.result().code, p.err.String())
	default:
		return nil
	}
}

// says waits until the process has written something, to either side.
func (p *process) says(words string) {
	p.t.Helper()
	wait(p.t, fmt.Sprintf("weft %s to say %q", p.cmd.Args[1], words), func() error {
		if strings.Contains(p.out.String()+p.err.String(), words) {
			return nil
		}
		if err := p.running(); err != nil {
			return fatal{err}
		}
		return errors.New("it does not")
	})
}

// fatal is an error of a condition that waiting does not mend.
type fatal struct{ error }

// wait looks until cond returns nil.
func wait(t *testing.T, what string, cond func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		var f fatal
		switch {
		case err == nil:
			return
		case ctx.Err() != nil, errors.As(err, &f):
			t.Fatalf("waiting for %s: %v", what, err)
		}
		<-tick.C
	}
}

// privateKey is the text form of one, as against talk of what it begins with.
var privateKey = regexp.MustCompile(`private-[a-z]+:[A-Za-z0-9_-]{20}`)

// secrets are what no command may ever say, but the one that is for saying it.
var secrets struct {
	mu   sync.Mutex
	list []string
}

// keepSecret has a token looked for in everything that commands say from now on.
func keepSecret(t *testing.T, text string) wire.Token {
	t.Helper()
	token, err := wire.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	secrets.mu.Lock()
	defer secrets.mu.Unlock()
	secrets.list = append(secrets.list, token.String(), base64.StdEncoding.EncodeToString(token.Secret[:]),
		base64.RawURLEncoding.EncodeToString(token.Secret[:]), hex.EncodeToString(token.Secret[:]), fmt.Sprint(token.Secret[:]))
	return token
}

// checkWords finds what nobody should have to read.
func checkWords(t *testing.T, r result) {
	t.Helper()
	said := r.out + r.err
	for _, w := range []string{"panic:", "goroutine ", "DATA RACE", ".go:", "%!", "<nil>"} {
		if strings.Contains(said, w) {
			t.Errorf("%q was said:\n%s", w, said)
		}
	}
	if privateKey.MatchString(said) {
		t.Errorf("a private key was said:\n%s", said)
	}
	secrets.mu.Lock()
	defer secrets.mu.Unlock()
	for _, s := range secrets.list {
		if strings.Contains(said, s) {
			t.Errorf("the secret of a token was said:\n%s", said)
		}
	}
}

// sentence returns the one sentence with which a command failed, and fails the test if it is not one.
func sentence(t *testing.T, r result, code int) string {
	t.Helper()
	checkWords(t, r)
	if r.code != code {
		t.Errorf("exit code is %d, not %d; it said %q", r.code, code, r.err)
	}
	var own []string
	for line := range strings.Lines(r.err) {
		if !strings.HasPrefix(line, "time=") { // the log
			own = append(own, line)
		}
	}
	if len(own) != 1 || !strings.HasPrefix(own[0], "weft: ") || !strings.HasSuffix(own[0], "\n") || len(own[0]) > 400 {
		t.Errorf("it did not say one sentence, but %q", own)
	}
	return strings.Join(own, "")
}

// fails checks that a command failed with a code and a sentence that has these words, and said nothing else.
func fails(t *testing.T, r result, code int, words ...string) {
	t.Helper()
	said := sentence(t, r, code)
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("it said %q, without %q", said, w)
		}
	}
	if r.out != "" {
		t.Errorf("a command that failed printed %q", r.out)
	}
}

// givenPorts are those that freePort gave.
var givenPorts struct {
	mu   sync.Mutex
	list map[int]bool
}

// freePort is a port that is free for TCP and UDP on loopback, and no connection's by chance: it is below those that
// the system gives (32768 on Linux).
func freePort(t *testing.T) int {
	t.Helper()
	givenPorts.mu.Lock()
	defer givenPorts.mu.Unlock()
	if givenPorts.list == nil {
		givenPorts.list = map[int]bool{}
	}
	for range 1000 {
		port := 20000 + rand.N(12000)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if givenPorts.list[port] {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		l.Close()
		c, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		c.Close()
		givenPorts.list[port] = true
		return port
	}
	t.Fatal("no port is free")
	return 0
}

// A testServer is weft server on loopback.
type testServer struct {
	*process
	t     *testing.T
	dir   string
	url   string
	port  int // TCP and UDP
	flags []string
	first string // the token of the first start
}

func newServer(t *testing.T, flags ...string) *testServer {
	t.Helper()
	s := &testServer{t: t, dir: filepath.Join(t.TempDir(), "server"), port: freePort(t), flags: flags}
	s.url = "https://127.0.0.1:" + strconv.Itoa(s.port)
	s.start()
	return s
}

// start starts the server, the first time or again.
func (s *testServer) start() {
	s.t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", s.port)
	cmd := weftCommand(s.t, append([]string{"server", "--data", s.dir, "--listen", addr, "--stun", addr, "--url", s.url}, s.flags...)...)
	s.process = start(s.t, cmd)
	s.says("weft server is up")
	if s.first == "" { // the line to paste is the one place for a secret
		s.says("weft node --token " + wire.TokenPrefix)
		line := s.out.String()
		s.first = line[strings.Index(line, wire.TokenPrefix):]
		s.first = strings.Fields(s.first)[0]
		s.tells = s.first
		keepSecret(s.t, s.first)
	}
}

// admin runs weft admin.
func (s *testServer) admin(args ...string) result {
	return inProcess(append([]string{"admin", "--data", s.dir}, args...)...)
}

// token makes a join token.
func (s *testServer) token(flags ...string) string {
	s.t.Helper()
	r := s.admin(append([]string{"key", "create"}, flags...)...)
	if r.code != ExitOK {
		s.t.Fatalf("no token: %s", r.err)
	}
	token := strings.TrimSpace(r.out)
	keepSecret(s.t, token)
	return token
}

// A testNode is weft node in userspace mode.
type testNode struct {
	*process
	t             *testing.T
	state, socket string
}

func newNode(t *testing.T) *testNode {
	dir := t.TempDir()
	return &testNode{t: t, state: filepath.Join(dir, "state"), socket: filepath.Join(dir, "s")}
}

// command prepares the daemon, with a token in its environment if there is one.
func (n *testNode) command(token string, flags ...string) *exec.Cmd {
	n.t.Helper()
	cmd := weftCommand(n.t, append([]string{"node", "--userspace", "--state", n.state, "--socket", n.socket, "--proxy", "127.0.0.1:0"}, flags...)...)
	if token != "" {
		cmd.Env = append(cmd.Env, tokenEnv+"="+token)
	}
	return cmd
}

// start starts the daemon and waits until it is up, or ready for weft up.
func (n *testNode) start(token string, flags ...string) {
	n.t.Helper()
	n.leaveRouterAlone()
	n.process = start(n.t, n.command(token, flags...))
	n.says("weft is ")
}

// leaveRouterAlone has a node that starts for the first time ask nothing of the router of the network that the tests
// run in.
func (n *testNode) leaveRouterAlone() {
	n.t.Helper()
	if _, err := os.Stat(n.state); err == nil {
		return
	}
	err := os.Mkdir(n.state, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(n.state, "settings.json"), []byte(`{"no_portmap":true}`), 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// run runs a command that talks to the daemon.
func (n *testNode) run(args ...string) result {
	return inProcess(append([]string{"--socket", n.socket}, args...)...)
}

func (n *testNode) status() weft.Status {
	n.t.Helper()
	r := n.run("status", "--json")
	var s weft.Status
	if err := json.Unmarshal([]byte(r.out), &s); err != nil {
		n.t.Fatalf("status is %+v: %v", r, err)
	}
	return s
}

// connected waits until the node has the server.
func (n *testNode) connected() {
	n.t.Helper()
	wait(n.t, "the node to be connected", func() error {
		if s := n.status(); !s.Server.Connected || s.State != weft.Running {
			return fmt.Errorf("it is %s: %s", s.State, strings.Join(s.Problems, "; "))
		}
		return nil
	})
}

// reaches waits until a peer replies.
func (n *testNode) reaches(peer string) {
	n.t.Helper()
	wait(n.t, peer+" to reply", func() error {
		if r := n.run("ping", "-c", "1", "--timeout", "1s", peer); r.code != ExitOK {
			return errors.New(r.out + r.err)
		}
		return nil
	})
}
