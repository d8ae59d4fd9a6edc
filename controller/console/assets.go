package console

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"path"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/web"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

//go:embed page.html assets
var files embed.FS

// asset is a file that pages name, by its digest too: browsers keep it until it is another.
type asset struct {
	packed      []byte
	contentType string
	digest      string
}

var assets = readAssets()

func readAssets() map[string]asset {
	found := map[string]asset{}
	entries, _ := files.ReadDir("assets") // it is there, or this does not compile
	for _, entry := range entries {
		content, _ := files.ReadFile("assets/" + entry.Name())
		sum := sha256.Sum256(content)
		contentType := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}[path.Ext(entry.Name())]
		found[entry.Name()] = asset{web.Pack(content), contentType, hex.EncodeToString(sum[:])}
	}
	return found
}

func (a asset) serve(w http.ResponseWriter, r *http.Request) {
	protect(w)
	w.Header().Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == a.digest {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	web.ServePacked(w, r, a.packed, a.contentType)
}

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"asset": func(name string) string { return "./assets/" + name + "?v=" + assets[name].digest },
	"at":    func(c cell, now time.Time) shownCell { return shownCell{c, ago(c.Since, now)} },
}).ParseFS(files, "page.html"))

// shown is what page.html shows.
type shown struct {
	Content *content
	// The page's address, for its stream.
	Of           string
	Machine      *controllerv1.Machine
	MachineClass string
	Version      string
	At           time.Time
	Nav          []linked
	Search       *search // nil: there is none
}

type shownCell struct {
	cell
	Ago string
}

type linked struct {
	Name, Href string
	IsHere     bool
}

func navigation(p page) (links []linked) {
	for _, k := range kinds {
		if k.title != "" {
			links = append(links, linked{k.title, "." + k.path, k == p.kind})
		}
	}
	return links
}

type search struct {
	Action, Q, Sort string
	Max             int
	Orders          []string
}

func searchOf(p page) *search {
	if !slices.Contains(p.kind.parameters, "q") {
		return nil
	}
	return &search{"." + p.kind.path, p.q, cmp.Or(p.sort, append(p.kind.orders, "")[0]), queryMax, p.kind.orders}
}
