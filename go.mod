module github.com/guideway/guideway

go 1.26.0
