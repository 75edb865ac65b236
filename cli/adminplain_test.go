package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"weft"
	"weft/control"
	"weft/golden"
	"weft/key"
)

// somePlain is a member as the server answers with it, and its private key.
func somePlain(t *testing.T) (control.PlainAnswer, key.NodePrivate) {
	t.Helper()
	private, err := key.PrivateFrom[key.Node](bytes.Repeat([]byte{7}, key.Size))
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := key.PrivateFrom[key.Node](bytes.Repeat([]byte{9}, key.Size))
	if err != nil {
		t.Fatal(err)
	}
	return control.PlainAnswer{
		Node: control.NodeInfo{Node: weft.Node{ID: 5, Name: "phone", Key: private.Public(), Gateway: 2,
			Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.5"), netip.MustParseAddr("fd12:3456:789a::5")}}},
		Gateway: control.GatewayInfo{ID: 2, Name: "home", Key: gateway.Public(), Endpoint: "[2001:db8::1]:41641"},
		Ranges:  []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd12:3456:789a::/48")},
		Service: netip.MustParseAddr("100.64.0.1"), Domain: weft.Domain,
	}, private
}

func TestTheConfigurationIsWhatWgQuickTakes(t *testing.T) {
	a, private := somePlain(t)
	golden.Text(t, "wireguard.conf", plainConfig(a, private))
	golden.Text(t, "wireguard-own-key.conf", plainConfig(a, key.NodePrivate{}))
	strip, err := exec.LookPath("wg-quick")
	if err != nil {
		t.Skip("wg-quick is not installed: what it makes of the configuration is not looked at")
	}
	file := filepath.Join(t.TempDir(), "wgtest.conf")
	if err := os.WriteFile(file, []byte(plainConfig(a, private)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(strip, "strip", file).CombinedOutput()
	if err != nil {
		t.Fatalf("wg-quick: %v: %s", err, out)
	}
	raw := private.RevealBytes()
	for _, want := range []string{"PrivateKey = " + base64.StdEncoding.EncodeToString(raw[:]), "Endpoint = [2001:db8::1]:41641", "AllowedIPs = 100.64.0.0/10, fd12:3456:789a::/48"} {
		if !strings.Contains(string(out), want+"\n") {
			t.Errorf("wg-quick strips it to\n%swhich lacks %s", out, want)
		}
	}
	for _, not := range []string{"Address", "DNS", "MTU"} {
		if strings.Contains(string(out), not) {
			t.Errorf("wg-quick leaves %s to wg, which does not know it", not)
		}
	}
}

// modules reads a drawn QR code back: true is dark.
func modules(t *testing.T, drawn string) [][]bool {
	t.Helper()
	var rows [][]bool
	for line := range strings.Lines(drawn) {
		cells, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "\x1b[40;97m")
		cells, end := strings.CutSuffix(cells, "\x1b[0m")
		if !ok || !end {
			t.Fatalf("a line whose colours are the terminal's: %q", line)
		}
		if n := utf8.RuneCountInString(cells); n > 80 {
			t.Errorf("a line of %d columns", n)
		}
		above, below := []bool{}, []bool{}
		for _, r := range cells {
			above, below = append(above, r == ' ' || r == '▄'), append(below, r == ' ' || r == '▀')
		}
		rows = append(rows, above, below)
	}
	return rows
}

func TestAPhoneReadsTheQRCodeThatIsDrawn(t *testing.T) {
	a, private := somePlain(t)
	want := withoutComments(plainConfig(a, private))
	if strings.Contains(want, "#") || !strings.Contains(want, "[Interface]\n") || strings.Contains(want, "\n\n") {
		t.Errorf("without comments it is\n%s", want)
	}
	var drawn bytes.Buffer
	if err := printQR(&drawn, want); err != nil {
		t.Fatal(err)
	}
	rows := modules(t, drawn.String())
	const scale = 4
	img := image.NewGray(image.Rect(0, 0, scale*len(rows[0]), scale*len(rows)))
	for y, row := range rows {
		for x, dark := range row {
			margin := x < quietZone || y < quietZone || x >= len(row)-quietZone || y >= len(row)-quietZone
			if margin && dark {
				t.Fatalf("the margin is dark at %d, %d", x, y)
			}
			for i := range scale * scale {
				c := color.Gray{Y: 255}
				if dark {
					c.Y = 0
				}
				img.SetGray(scale*x+i%scale, scale*y+i/scale, c)
			}
		}
	}
	reader, err := exec.LookPath("zbarimg")
	if err != nil {
		t.Skip("zbarimg (zbar-tools) is not installed: nobody reads the code")
	}
	file := filepath.Join(t.TempDir(), "qr.png")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := png.Encode(f, img); err != nil {
		t.Fatal(err)
	}
	f.Close()
	out, err := exec.Command(reader, "--quiet", "--raw", file).Output()
	if err != nil {
		t.Fatalf("zbarimg: %v", err)
	}
	if got := strings.TrimRight(string(out), "\n"); got != strings.TrimRight(want, "\n") {
		t.Errorf("it reads\n%s\nand not\n%s", got, want)
	}
}

func TestADeviceKeepsThePrivateKeyThatItMade(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	gw := newNode(t)
	gw.start(srv.token(), "--name", "gw")
	gw.connected()
	own := key.NewPrivate[key.Node]()
	text := wireGuardKey(own.Public().Bytes())

	r := srv.admin("node", "create", "--wireguard", "--name", "router", "--via", "gw", "--endpoint", "gw.example:41641", "--public-key", text)
	if r.code != ExitOK || strings.Contains(r.out, "\nPrivateKey") || !strings.Contains(r.out, text) || !strings.Contains(r.out, "Endpoint = gw.example:41641\n") {
		t.Errorf("with a key of its own: %+v", r)
	}
	r = srv.admin("node", "create", "--wireguard", "--name", "phone", "--via", "gw", "--endpoint", "gw.example:41641", "--json")
	var doc plainDoc
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != ExitOK {
		t.Fatalf("%+v: %v", r, err)
	}
	_, after, _ := strings.Cut(doc.Config, "PrivateKey = ")
	line, _, _ := strings.Cut(after, "\n")
	b, err := base64.StdEncoding.DecodeString(line)
	if err != nil {
		t.Fatal(err)
	}
	private, err := key.PrivateFrom[key.Node](b)
	if err != nil || private.Public() != doc.Node.Key {
		t.Errorf("the private key is not that of the node: %v", err)
	}
	if strings.Count(r.out, line) != 1 || strings.Contains(r.out, "█") {
		t.Errorf("the key is there %d times, or a QR code where nobody looks:\n%s", strings.Count(r.out, line), r.out)
	}
	r = srv.admin("node", "list")
	if !strings.Contains(r.out, "wireguard by gw") || strings.Contains(r.out, line) {
		t.Errorf("the list is\n%s", r.out)
	}
	// The server has not seen it: it is in none of its files.
	files, err := filepath.Glob(filepath.Join(srv.dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal("the server has no files")
	}
	for _, f := range files {
		if text, _ := os.ReadFile(f); bytes.Contains(text, b) || bytes.Contains(text, []byte(line)) {
			t.Errorf("the private key is in %s", f)
		}
	}
}

func TestWhatMakesNoSenseOfAPlainNodeIsSaid(t *testing.T) {
	for _, c := range []struct{ line, words string }{
		{"admin node create --name a", "--wireguard"},
		{"admin node create --via a", "--wireguard"},
		{"admin node create --public-key x", "--wireguard"},
		{"admin node create --wireguard --reusable", "--reusable"},
		{"admin node create --wireguard --relay", "--relay"},
		{"admin node create --wireguard --expires 0s", "--expires"},
		{"admin node create --wireguard --expires -1h", "--expires"},
		{"admin node create --wireguard --public-key x", "wg pubkey"},
		{"admin node create --wireguard --public-key nodekey:pOCSkrZRwni5dyxWn1-puxPZBrRqtoyd-dwrRAn4ogk", "wg pubkey"},
		{"admin node create --wireguard a", "one word too many"},
	} {
		t.Run(c.line, func(t *testing.T) {
			fails(t, inProcess(strings.Fields(c.line)...), ExitUsage, c.words)
		})
	}
}
